"""C++ rules for Bazel's own tools, which load them from @rules_cc: those that are built in.

Bazel 4 would download that repository, and the one that Debian packages is made for a later Bazel.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
