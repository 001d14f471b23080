# Needed: threads, zlib, libyaml, jansson, libpng, libmd. Left out with one line if missing: gloo,
# Open MPI, libcurl, libmicrohttpd; and Check, without which there are no tests.
# CMAKE_PREFIX_PATH names further places to look.
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

macro(need_c_library package variable)
    find_c_library(${variable} ${ARGN})
    if(NOT ${variable})
        message(FATAL_ERROR "a library is missing: install ${package}")
    endif()
endmacro()

need_c_library(libyaml-dev HAVE_YAML YAML::yaml yaml.h yaml)
need_c_library(libjansson-dev HAVE_JANSSON JANSSON::jansson jansson.h jansson)
need_c_library(libpng-dev HAVE_PNG PNG::PNG png.h png png16)
set_target_properties(PNG::PNG PROPERTIES INTERFACE_LINK_LIBRARIES "ZLIB::ZLIB;m") # a static one's needs
need_c_library(libmd-dev HAVE_MD MD::md sha2.h libmd.a md) # static: one less to load at each start

# x86-64, and a compiler that knows its generations: gcc 11 or clang 12.
set(HAVE_AVX_KERNELS OFF)
if(WITH_CPU_KERNELS)
    include(CheckCSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS "-march=x86-64-v4 -mavx512bf16")
    check_c_source_compiles("int main(void) { return 0; }" COMPILER_KNOWS_X86_64_V4)
    unset(CMAKE_REQUIRED_FLAGS)
    set(HAVE_AVX_KERNELS ${COMPILER_KNOWS_X86_64_V4})
endif()
if(NOT HAVE_AVX_KERNELS)
    message(STATUS "kernels for AVX2 and AVX-512: left out (for x86-64, with gcc 11); --device=cpu computes with "
        "128-bit vectors")
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

# Debian has several MPIs beside each other: Open MPI is in a folder of its own.
set(HAVE_MPI OFF)
if(WITH_MPI)
    find_path(MPI_INCLUDE mpi.h PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}
        PATH_SUFFIXES openmpi/include)
    find_library(MPI_LIBRARY mpi PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}
        PATH_SUFFIXES openmpi/lib)
    mark_as_advanced(MPI_INCLUDE MPI_LIBRARY)
    if(MPI_INCLUDE AND MPI_LIBRARY AND EXISTS ${MPI_INCLUDE}/mpi_portable_platform.h)
        add_library(MPI::mpi UNKNOWN IMPORTED GLOBAL)
        set_target_properties(MPI::mpi PROPERTIES IMPORTED_LOCATION "${MPI_LIBRARY}"
            INTERFACE_INCLUDE_DIRECTORIES "${MPI_INCLUDE}")
        set(HAVE_MPI ON)
    endif()
endif()
if(NOT HAVE_MPI)
    message(STATUS "Open MPI: left out (install libopenmpi-dev); --backend=mpi is not there")
endif()

set(HAVE_CURL OFF)
if(WITH_CURL)
    find_c_library(HAVE_CURL CURL::curl curl/curl.h curl)
endif()
if(NOT HAVE_CURL)
    message(STATUS "libcurl: left out (install libcurl4-openssl-dev); mnist_ddp data fetch and --rdzv-backend=etcd are not there")
endif()

set(HAVE_MICROHTTPD OFF)
if(WITH_MICROHTTPD)
    find_c_library(HAVE_MICROHTTPD MICROHTTPD::microhttpd microhttpd.h microhttpd)
endif()
if(NOT HAVE_MICROHTTPD)
    message(STATUS "libmicrohttpd: left out (install libmicrohttpd-dev); mnist_ddp serve is not there")
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
