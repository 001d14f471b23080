# cmake -D SOURCES="a/page.html;a/page.css" -D OUT=files.c -P embed.cmake: files as C arrays,
# page.html as page_html with its size in page_html_bytes.
set(text "#include \"app/common/page_files.h\"\n")
foreach(source ${SOURCES})
    get_filename_component(name ${source} NAME)
    string(REPLACE "." "_" name ${name})
    file(READ ${source} bytes HEX)
    string(LENGTH "${bytes}" digits)
    math(EXPR size "${digits} / 2")
    string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND text "const char ${name}[] = {${bytes}};\n"
        "const size_t ${name}_bytes = ${size};\n")
endforeach()
file(WRITE ${OUT} "${text}")
