# Two ways to compile faster: precompiled headers, and several files in one compilation.
# docs/dev/building.md says what each saves and how to measure it.

option(HEARTH_PRECOMPILED "read the large headers of libraries once (precompiled headers)" ON)
option(HEARTH_TOGETHER "compile several files of a library as one; OFF while one file is edited" ON)

# mold, if it is installed, links in a tenth of the time.
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# ccache caches a compilation with a precompiled header only if it may ignore macros like __TIME__
# in it (CCACHE_SLOPPINESS) and, with GCC, only with -fpch-preprocess.
if(HEARTH_PRECOMPILED)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
  if(CCACHE AND CMAKE_CXX_COMPILER_LAUNCHER STREQUAL CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  endif()
endif()

# For all targets: a precompiled header must be used with the same -pthread.
add_compile_options(-pthread)

# A precompiled header fills GCC's heap, so GCC collects garbage often and frees little. A larger
# minimum heap saves a tenth of the time and costs a twentieth more memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=1500000)
endif()

# hearth_precompile(NAME HEADERS <vector> ... LIBS lib ... OPTIONS -O1 ...): precompiles headers.
# Targets that use them must have the same options; otherwise GCC warns (-Winvalid-pch) and reads
# the headers again.
function(hearth_precompile name)
  cmake_parse_arguments(arg "" "" "HEADERS;LIBS;OPTIONS" ${ARGN})
  if(NOT HEARTH_PRECOMPILED)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Owns a precompiled header.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
  if(CCACHE)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
      "${CMAKE_SOURCE_DIR}/scripts/precompile.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()

# If libraries are compiled with the options of tests, as for the address sanitizer, they use the
# precompiled headers of tests.
set(HEARTH_LIKE_TESTS FALSE)
if(CMAKE_BUILD_TYPE STREQUAL Release AND CMAKE_CXX_FLAGS_RELEASE MATCHES "-O0")
  set(HEARTH_LIKE_TESTS TRUE)
  add_compile_definitions(GTEST_HAS_PTHREAD=1)  # GoogleTest's targets define it too
endif()

# hearth_compile(TARGET [HEADERS name] [TOGETHER n]): compiles TARGET with the headers that
# hearth_precompile(name) precompiled, n files in one compilation.
function(hearth_compile target)
  cmake_parse_arguments(arg "" "HEADERS;TOGETHER" "" ${ARGN})
  if(HEARTH_LIKE_TESTS)
    string(REPLACE hearth_common_headers hearth_test_headers arg_HEADERS "${arg_HEADERS}")
    string(REPLACE hearth_rpc_headers hearth_rpc_test_headers arg_HEADERS "${arg_HEADERS}")
  endif()
  if(arg_HEADERS AND HEARTH_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM ${arg_HEADERS})
  endif()
  if(arg_TOGETHER AND HEARTH_TOGETHER)
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${arg_TOGETHER})
  endif()
endfunction()

# --- the headers ---

# For every library: headers of Abseil and of the standard library.
set(common_headers
  <algorithm> <array> <atomic> <cassert> <cstddef> <cstdint> <cstring> <deque> <fstream>
  <functional> <map> <memory> <mutex> <optional> <set> <sstream> <string> <thread> <tuple> <utility>
  <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h> <absl/functional/function_ref.h>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/match.h> <absl/strings/numbers.h>
  <absl/strings/str_cat.h> <absl/strings/str_join.h> <absl/synchronization/mutex.h>
  <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>)
hearth_precompile(hearth_common_headers HEADERS ${common_headers})

# Also for services/: gRPC, and the code generated from proto/.
set(rpc_headers <grpcpp/grpcpp.h> <proto/cache_store.grpc.pb.h> <proto/inference.grpc.pb.h>)
hearth_precompile(hearth_rpc_headers HEADERS ${common_headers} ${rpc_headers} LIBS hearth_proto)

# Also for tests. Compiling the tests is half of a cold build, and they run for seconds, so they are
# not optimised.
set(HEARTH_TEST_OPTIONS -O0)
set(test_headers <gmock/gmock.h> <gtest/gtest.h> <filesystem> <random>)
hearth_precompile(hearth_test_headers
  HEADERS ${common_headers} ${test_headers} LIBS GTest::gmock OPTIONS ${HEARTH_TEST_OPTIONS})
hearth_precompile(hearth_rpc_test_headers
  HEADERS ${common_headers} ${rpc_headers} ${test_headers}
  LIBS hearth_proto GTest::gmock OPTIONS ${HEARTH_TEST_OPTIONS})
