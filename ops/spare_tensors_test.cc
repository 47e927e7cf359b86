#include "ops/spare_tensors.h"

#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

DOCTEST_TEST_CASE("MemoryIsTakenOnceForATensorOfEqualSize") {
  SpareTensors spares;
  Tensor spare(tensorflow::DT_FLOAT, TensorShape({2, 3}));
  const void* const memory = spare.data();
  spares.Add(std::move(spare));
  spares.Add(Tensor(tensorflow::DT_FLOAT, TensorShape({0})));
  Tensor tensor;
  DOCTEST_CHECK(!spares.Take(tensorflow::DT_INT32, TensorShape({6}), &tensor));
  DOCTEST_CHECK(!spares.Take(tensorflow::DT_FLOAT, TensorShape({5}), &tensor));
  DOCTEST_CHECK(!spares.Take(tensorflow::DT_FLOAT, TensorShape({0}), &tensor));
  DOCTEST_CHECK(spares.Take(tensorflow::DT_FLOAT, TensorShape({6}), &tensor));
  DOCTEST_CHECK_EQ(tensor.data(), memory);
  DOCTEST_CHECK_EQ(tensor.shape(), TensorShape({6}));
  DOCTEST_CHECK(tensor.RefCountIsOne());
  DOCTEST_CHECK(!spares.Take(tensorflow::DT_FLOAT, TensorShape({6}), &tensor));
}

DOCTEST_TEST_CASE("MemoryThatIsStillReadIsNotTaken") {
  SpareTensors spares;
  const Tensor read(tensorflow::DT_FLOAT, TensorShape({4}));
  Tensor other(tensorflow::DT_FLOAT, TensorShape({4}));
  const void* const memory = other.data();
  Tensor row = Tensor(tensorflow::DT_FLOAT, TensorShape({1, 4})).SubSlice(0);
  spares.Add(read);
  spares.Add(row);
  Tensor tensor;
  DOCTEST_CHECK(!spares.Take(tensorflow::DT_FLOAT, TensorShape({4}), &tensor));
  spares.Add(read);
  spares.Add(std::move(other));
  DOCTEST_CHECK(spares.Take(tensorflow::DT_FLOAT, TensorShape({4}), &tensor));
  DOCTEST_CHECK_EQ(tensor.data(), memory);
}

}  // namespace
}  // namespace tf_libra
