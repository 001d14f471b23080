# Flags that every target shares (project_options) and the warnings that our own code is held to.
add_library(project_options INTERFACE)
target_compile_definitions(project_options INTERFACE _GNU_SOURCE)
if(SANITIZE)
    target_compile_options(project_options INTERFACE -fsanitize=${SANITIZE}
        -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(project_options INTERFACE -fsanitize=${SANITIZE})
    target_compile_definitions(project_options INTERFACE SANITIZED=1)
endif()

# gcc 12 crashes on loops with fmax where it makes vectors of them. The kernels call no fmax.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64" AND CMAKE_C_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(project_options INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-builtin-fmax>)
endif()

# What turns a write beyond an array into an end with a message, and leaves no function's address to
# be overwritten. A sanitizer sees more, and glibc's checks would hide it; those need optimization.
include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)
if(NOT SANITIZE)
    set(host "$<COMPILE_LANGUAGE:C,CXX>")
    set(fortify 3)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 12)
        set(fortify 2) # it warns of 3
    endif()
    target_compile_options(project_options INTERFACE $<${host}:-fstack-protector-strong>
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fstack-protector-strong>
        "$<$<AND:${host},$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${fortify}>")
    target_link_options(project_options INTERFACE -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()

# A compiler that nobody here has tried may warn of more: gpu-check builds there without this.
option(WARNINGS_AS_ERRORS "a warning ends the build" ON)
add_library(project_warnings INTERFACE)
target_compile_options(project_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:\
-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;-Wdouble-promotion>")
if(WARNINGS_AS_ERRORS)
    target_compile_options(project_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
