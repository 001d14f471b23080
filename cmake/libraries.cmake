# Needed: threads, zlib, libyaml, jansson. Left out with one line where missing: oneDNN, gloo; and
# Check, without which there are no tests. CMAKE_PREFIX_PATH names further places to look.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)

# Sets <variable> and makes the target <target> for a C library, shared or static.
function(find_c_library variable target header)
    find_path(${variable}_INCLUDE ${header})
    find_library(${variable}_LIBRARY NAMES ${ARGN})
    mark_as_advanced(${variable}_INCLUDE ${variable}_LIBRARY)
    if(${variable}_INCLUDE AND ${variable}_LIBRARY)
        add_library(${target} UNKNOWN IMPORTED GLOBAL)
        set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${${variable}_LIBRARY}"
            INTERFACE_INCLUDE_DIRECTORIES "${${variable}_INCLUDE}")
        set(${variable} ON PARENT_SCOPE)
    else()
        set(${variable} OFF PARENT_SCOPE)
    endif()
endfunction()

find_c_library(HAVE_YAML YAML::yaml yaml.h yaml)
find_c_library(HAVE_JANSSON JANSSON::jansson jansson.h jansson)
if(NOT HAVE_YAML)
    message(FATAL_ERROR "libyaml is missing: install libyaml-dev")
elseif(NOT HAVE_JANSSON)
    message(FATAL_ERROR "jansson is missing: install libjansson-dev")
endif()

set(HAVE_ONEDNN OFF)
if(WITH_ONEDNN)
    find_library(ONEDNN_LIBRARY dnnl)
    find_path(ONEDNN_INCLUDE oneapi/dnnl/dnnl_version.h)
    if(ONEDNN_LIBRARY AND ONEDNN_INCLUDE)
        set(HAVE_ONEDNN ON)
    endif()
endif()
if(NOT HAVE_ONEDNN)
    message(STATUS "oneDNN: left out (install libdnnl-dev); --device=onednn is not there")
endif()

# x86-64, and a compiler that knows vectors: gcc 12 or clang 12.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-march=x86-64-v4")
check_c_source_compiles("
    typedef float vec __attribute__((vector_size(16)));
    int main(void)
    {
        vec v = {0};
        return (int)__builtin_shufflevector(v, v, 4, 5, 6, 7)[0];
    }" HAVE_CPU_DEVICE)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT HAVE_CPU_DEVICE)
    message(STATUS "cpu kernels: left out (for x86-64, with gcc 12); --device=cpu is oneDNN if it is "
        "there, else the reference kernels")
endif()

set(HAVE_GLOO OFF)
if(WITH_GLOO)
    find_library(GLOO_LIBRARY gloo)
    find_path(GLOO_INCLUDE gloo/allreduce.h)
    if(GLOO_LIBRARY AND GLOO_INCLUDE)
        set(HAVE_GLOO ON)
    endif()
endif()
if(NOT HAVE_GLOO)
    message(STATUS "gloo: left out (install libgloo-dev); --backend=gloo is not there")
endif()

if(WITH_TESTS)
    find_c_library(HAVE_CHECK CHECK::check check.h check_pic check)
    if(HAVE_CHECK)
        find_library(SUBUNIT_LIBRARY subunit) # a static Check may be built with it
        mark_as_advanced(SUBUNIT_LIBRARY)
        set(check_needs Threads::Threads m rt)
        if(SUBUNIT_LIBRARY)
            list(PREPEND check_needs ${SUBUNIT_LIBRARY})
        endif()
        set_target_properties(CHECK::check PROPERTIES INTERFACE_LINK_LIBRARIES "${check_needs}")
    else()
        message(STATUS "Check: not found (install check); the tests are left out")
        set(WITH_TESTS OFF)
    endif()
endif()
