# SPDX-License-Identifier: MIT
# A file as an array in C: cmake -DFROM=page.html -DTO=page_html.c -DNAME=nl_page_html -P embed.cmake
file(READ ${FROM} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "((0x..,){20})" "\\1\n" bytes "${bytes}")
file(WRITE ${TO} "/* SPDX-License-Identifier: MIT */
/* Made by cmake/embed.cmake. */
#include \"served.h\"

const unsigned char ${NAME}[] = {
${bytes}0};
const size_t ${NAME}_size = ${size};
")
