/* SPDX-License-Identifier: MIT */
/* The page, which holds nothing of this server and is the same for everybody. */
#include "http.h"
#include "served.h"

static enum MHD_Result html(nl_exchange *exchange)
{
    return nl_answer_bytes(exchange, "text/html; charset=utf-8", nl_page_html, nl_page_html_size,
                           0);
}

static enum MHD_Result css(nl_exchange *exchange)
{
    return nl_answer_bytes(exchange, "text/css; charset=utf-8", nl_page_css, nl_page_css_size, 0);
}

static enum MHD_Result js(nl_exchange *exchange)
{
    return nl_answer_bytes(exchange, "text/javascript; charset=utf-8", nl_page_js, nl_page_js_size,
                           0);
}

const nl_route nl_page_routes[] = {
    {"GET", "/", html},
    {"GET", "/page.css", css},
    {"GET", "/page.js", js},
    {0},
};
