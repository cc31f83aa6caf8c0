/* SPDX-License-Identifier: MIT */
/* UTF-8 (RFC 3629). */
#ifndef NL_UTF8_H
#define NL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that `text` begins with, 1 to 4, and its code point; 0 where there is none: an overlong form, a
 * surrogate, something beyond U+10FFFF, or not all of it within `size` bytes. */
int nl_utf8_decode(const char *text, size_t size, uint32_t *code);
/* Whether a character is none that one sees: control characters (C0, DEL, C1), marks that turn the direction of writing,
 * characters without width, ends of lines and paragraphs, tags. A terminal acts on many of them. */
bool nl_utf8_hidden(uint32_t code);
/* The same or a space of any width, punctuation of U+2000 to U+206F, an ideographic comma or full stop. */
bool nl_utf8_blank(uint32_t code);
/* Whether all of a text is UTF-8. */
bool nl_utf8_valid(const char *text);

#endif
