# The CUDA module, mnist_ddp_cuda.so: kernels/cuda and dist/backends/nccl, opened at run time. Needs
# nvcc,
# cuBLASLt, cuDNN 9 and NCCL 2, and is left out with one line where one is missing. They are looked
# for in nvcc's own toolkit, whose headers nvcc prefers in any case, in NVIDIA_PACKAGES,
# CMAKE_PREFIX_PATH, the system's folders and, last, among python3's packages, where a PyTorch keeps
# them (without the links that end in .so). Sanitized builds go without: there the same sources run
# on the emulated device of tests/emulator.
option(WITH_CUDA "the CUDA module" ON)
set(CUDA_ARCHITECTURES "75-real;80-real;90-real;100" CACHE STRING
    "GPUs that the CUDA module is built for, as CMAKE_CUDA_ARCHITECTURES spells them, if nvcc knows them")
set(NVIDIA_PACKAGES "" CACHE PATH "folder of NVIDIA's Python packages: .../site-packages/nvidia")

# Sets <name>_INCLUDE and <name>_LIBRARY to the first folder below <roots>... that holds both, so
# that header and library are of one version.
function(find_nvidia name header library)
    if(EXISTS "${${name}_LIBRARY}")
        return()
    endif()
    foreach(root ${ARGN})
        file(GLOB headers "${root}/include/${header}" "${root}/targets/*/include/${header}"
            "${root}/*/include/${header}"
            "${root}/include/${CMAKE_LIBRARY_ARCHITECTURE}/${header}")
        foreach(found ${headers})
            get_filename_component(include "${found}" DIRECTORY)
            string(REGEX REPLACE "/include(/${CMAKE_LIBRARY_ARCHITECTURE})?$" "" prefix "${include}")
            foreach(folder lib64 lib "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
                if(EXISTS "${prefix}/${folder}/${library}")
                    set(${name}_INCLUDE "${include}" CACHE PATH "" FORCE)
                    set(${name}_LIBRARY "${prefix}/${folder}/${library}" CACHE FILEPATH "" FORCE)
                    mark_as_advanced(${name}_INCLUDE ${name}_LIBRARY)
                    return()
                endif()
            endforeach()
        endforeach()
    endforeach()
endfunction()

# Sets <out> to the NVIDIA packages of python3 that were made for CUDA <major>.
function(find_python_packages major out)
    set(found)
    execute_process(COMMAND python3 -c "import sys; print(';'.join(sys.path))"
        OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    foreach(folder ${folders})
        file(GLOB any "${folder}/nvidia_cudnn_cu*.dist-info")
        file(GLOB right "${folder}/nvidia_cudnn_cu${major}-*.dist-info")
        if(IS_DIRECTORY "${folder}/nvidia" AND (right OR NOT any))
            list(APPEND found "${folder}/nvidia")
        endif()
    endforeach()
    set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Sets <missing> to the names of what is not there.
function(find_nvidia_libraries major missing)
    get_filename_component(nvcc "${NVCC}" REALPATH)
    get_filename_component(toolkit "${nvcc}/../.." ABSOLUTE)
    set(roots "${toolkit}" ${NVIDIA_PACKAGES} ${CMAKE_PREFIX_PATH} /usr/local /usr)
    foreach(turn system python)
        set(names)
        foreach(part "CUDART/cuda_runtime.h/libcudart.so.${major}"
                "cuBLASLt/cublasLt.h/libcublasLt.so.${major}"
                "cuDNN/cudnn_backend.h/libcudnn.so.9" "NCCL/nccl.h/libnccl.so.2")
            string(REPLACE "/" ";" part "${part}")
            list(GET part 0 name)
            find_nvidia(${part} ${roots})
            if(NOT ${name}_LIBRARY)
                list(APPEND names ${name})
            endif()
        endforeach()
        if(NOT names)
            break()
        elseif(turn STREQUAL system)
            find_python_packages(${major} roots)
        endif()
    endforeach()
    list(JOIN names ", " names)
    set(${missing} "${names}" PARENT_SCOPE)
endfunction()

# Sets <out> to those of CUDA_ARCHITECTURES that nvcc knows. If it does not know all, the newest of
# them is there as PTX, too, which the driver of a newer GPU compiles. A name such as "native" is left
# to CMake.
function(find_architectures out missing)
    execute_process(COMMAND ${NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
    set(found)
    foreach(architecture ${CUDA_ARCHITECTURES})
        string(REGEX MATCH "^[0-9]+[a-z]?" number "${architecture}")
        if(NOT number OR "${known} " MATCHES "sm_${number}[^0-9a-z]")
            list(APPEND found "${architecture}")
        endif()
    endforeach()
    if(found AND NOT found STREQUAL CUDA_ARCHITECTURES)
        string(REGEX REPLACE "-real$" "" found "${found}")
    endif()
    if(NOT found)
        list(JOIN CUDA_ARCHITECTURES ", " wanted)
        set(${missing} "nvcc that knows one of ${wanted}" PARENT_SCOPE)
    endif()
    set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Sets <missing> if nvcc compiles nothing, as with a C++ compiler that is newer than it knows: then
# enable_language would end the whole configuration.
function(try_nvcc missing)
    separate_arguments(flags UNIX_COMMAND "$ENV{CUDAFLAGS} ${CMAKE_CUDA_FLAGS}")
    foreach(compiler ${CMAKE_CUDA_HOST_COMPILER} $ENV{CUDAHOSTCXX})
        list(APPEND flags -ccbin ${compiler})
        break()
    endforeach()
    set(command "${NVCC}" ${flags} -o try_nvcc.out try_nvcc.cu)
    if(NOT NVCC_WORKS STREQUAL command)
        set(folder "${CMAKE_BINARY_DIR}/CMakeFiles")
        file(WRITE "${folder}/try_nvcc.cu" "int main() { return 0; }\n")
        execute_process(COMMAND ${command} WORKING_DIRECTORY "${folder}" RESULT_VARIABLE code
            OUTPUT_VARIABLE said ERROR_VARIABLE said)
        if(NOT code EQUAL 0)
            string(REGEX MATCH "[^\n]*(error|fatal)[^\n]*" said "${said}")
            set(${missing} "nvcc that works: ${said}" PARENT_SCOPE)
            return()
        endif()
        set(NVCC_WORKS "${command}" CACHE INTERNAL "the command that has compiled something")
    endif()
endfunction()

set(HAVE_CUDA OFF)
if(WITH_CUDA AND NOT SANITIZE)
    find_program(NVCC NAMES $ENV{CUDACXX} nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin"
        PATHS /usr/local/cuda/bin)
    set(missing "nvcc")
    if(NVCC)
        execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
        string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" ignored "${nvcc_version}")
        find_nvidia_libraries("${CMAKE_MATCH_1}" missing)
        if(NOT missing)
            find_architectures(architectures missing)
        endif()
        if(NOT missing)
            try_nvcc(missing)
        endif()
    endif()
    if(missing)
        message(STATUS "CUDA: left out (no ${missing}); --device=cuda and --backend=nccl are not "
            "there")
    else()
        set(HAVE_CUDA ON)
        message(STATUS "CUDA: ${NVCC}, ${cuBLASLt_LIBRARY}, ${cuDNN_LIBRARY}, ${NCCL_LIBRARY}; for "
            "${architectures}")
    endif()
endif()

if(HAVE_CUDA)
    set(CMAKE_CUDA_COMPILER "${NVCC}")
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}")
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    enable_language(CUDA)
    set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -g -lineinfo")

    # What CUDA sources are compiled and linked with. The toolkit's headers come first: a package's
    # folder may hold the runtime's as well, of another version. nvcc is told by hand that they are
    # a system's, as CMake leaves out folders that nvcc knows. -Wpedantic is not for the code that
    # nvcc makes.
    set(cuda_includes "${CUDART_INCLUDE}" "${cuBLASLt_INCLUDE}" "${cuDNN_INCLUDE}"
        "${NCCL_INCLUDE}")
    list(REMOVE_DUPLICATES cuda_includes)
    list(REMOVE_ITEM cuda_includes /usr/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
    set(cuda_libraries "${CUDART_LIBRARY}" "${cuBLASLt_LIBRARY}" "${cuDNN_LIBRARY}"
        "${NCCL_LIBRARY}")
    set(cuda_library_folders)
    foreach(library ${cuda_libraries})
        get_filename_component(folder "${library}" DIRECTORY)
        list(APPEND cuda_library_folders "${folder}")
    endforeach()
    list(REMOVE_DUPLICATES cuda_library_folders)
    add_library(cuda_libraries INTERFACE)
    foreach(folder ${cuda_includes})
        target_compile_options(cuda_libraries INTERFACE "SHELL:-isystem \"${folder}\"")
    endforeach()
    target_compile_options(cuda_libraries INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:\
-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Wdouble-promotion>")
    if(WARNINGS_AS_ERRORS)
        target_compile_options(cuda_libraries INTERFACE
            "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
    endif()
    target_link_libraries(cuda_libraries INTERFACE ${cuda_libraries})
    # RPATH, not RUNPATH: it also serves what these libraries open themselves.
    target_link_options(cuda_libraries INTERFACE -Wl,--disable-new-dtags)

    # For targets with CUDA sources.
    function(use_cuda target)
        target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
        target_link_libraries(${target} PRIVATE project_options project_warnings cuda_libraries
            Threads::Threads)
        set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY None LINKER_LANGUAGE CXX
            INSTALL_RPATH "${cuda_library_folders}" BUILD_WITH_INSTALL_RPATH ON)
    endfunction()

    file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.c kernels/cuda/*.cu dist/backends/nccl/*.c
        dist/backends/nccl/*.cu)
    if(cuda_sources)
        add_library(mnist_ddp_cuda MODULE ${cuda_sources})
        # Hidden: a name of its own that the executable has too must not become the executable's.
        set_target_properties(mnist_ddp_cuda PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden
            CUDA_VISIBILITY_PRESET hidden)
        use_cuda(mnist_ddp_cuda)
        add_dependencies(modules mnist_ddp_cuda)
        # Optional: `make test` builds the rest without it.
        install(TARGETS mnist_ddp_cuda LIBRARY DESTINATION lib/mnist_ddp OPTIONAL)
    endif()
    add_subdirectory(bench/gpu)
endif()
