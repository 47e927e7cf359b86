// Attributes of a node that another one takes over.

#ifndef TF_LIBRA_PASSES_NODE_ATTRIBUTES_H_
#define TF_LIBRA_PASSES_NODE_ATTRIBUTES_H_

#include <initializer_list>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {

// Copies attributes. One that has its default may have been stripped, and stays so.
inline void CopyAttributes(const tensorflow::NodeDef& from,
                           std::initializer_list<const char*> names, tensorflow::NodeDef* to) {
  for (const char* name : names) {
    const auto found = from.attr().find(name);
    if (found != from.attr().end()) (*to->mutable_attr())[name] = found->second;
  }
}

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_NODE_ATTRIBUTES_H_
