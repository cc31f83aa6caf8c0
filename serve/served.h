/* SPDX-License-Identifier: MIT */
/* What the program holds to serve: the page and the document of its interfaces, made of serve/page when it is built. */
#ifndef NL_SERVED_H
#define NL_SERVED_H

#include "nl_json.h"

extern const unsigned char nl_page_html[], nl_page_css[], nl_page_js[], nl_openapi_json[];
extern const size_t nl_page_html_size, nl_page_css_size, nl_page_js_size, nl_openapi_json_size;

/* The document, with the fields of a job as the table of options has them. */
nl_status nl_openapi(nl_context *context, cJSON **document);

#endif
