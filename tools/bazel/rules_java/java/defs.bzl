"""Java rules for Bazel's own tools, which load them from @rules_java even to build C++."""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_runtime = native.java_runtime
java_toolchain = native.java_toolchain
