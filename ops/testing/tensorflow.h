// What tests of units that use TensorFlow share, compiled once for them (setup.py). TensorFlow has
// a CHECK of its own, which ends the process, so doctest's names are the long ones there.
#ifndef TF_LIBRA_OPS_TESTING_TENSORFLOW_H_
#define TF_LIBRA_OPS_TESTING_TENSORFLOW_H_

#include "ops/tensorflow_headers.h"
#include "tensorflow/core/framework/graph.pb.h"
#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#include "ops/testing/checks.h"

#endif  // TF_LIBRA_OPS_TESTING_TENSORFLOW_H_
