#include "tests/app/support/browser.h"

#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"

#include <stdlib.h>
#include <string.h>

static const char *browser;

static bool is_there(const char *name)
{
    const char *const argv[] = {name, "--version", NULL};
    program p = program_start(argv);
    program_wait(&p, BROWSER_S);
    bool found = p.exit_code == 0;
    program_close(&p);
    return found;
}

bool browser_find(void)
{
    static const char *const names[] = {"chromium", "chromium-browser", "google-chrome"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && browser == NULL; i++)
        browser = is_there(names[i]) ? names[i] : NULL;
    return browser != NULL;
}

const char *browser_name(void)
{
    return browser;
}

program browser_open(const char *path, int width)
{
    char url[FILE_PATH_BYTES + 16], profile[FILE_PATH_BYTES + 32], size[40];
    snprintf(url, sizeof url, "file://%s", path);
    snprintf(profile, sizeof profile, "--user-data-dir=%s", test_folder_path("profile"));
    snprintf(size, sizeof size, "--window-size=%d,900", width);
    const char *const argv[] = {browser,
                                "--headless",
                                "--no-sandbox",
                                "--disable-gpu",
                                "--disable-dev-shm-usage",
                                "--disable-background-networking",
                                "--enable-logging=stderr",
                                "--v=0",
                                size,
                                profile,
                                "--dump-dom",
                                url,
                                NULL};
    program p = program_start(argv);
    program_wait(&p, BROWSER_S);
    return p;
}

static void cut_scripts(char *page)
{
    for (char *begin = page; (begin = strstr(begin, "<script")) != NULL;) {
        const char *end = strstr(begin, "</script>");
        ck_assert_ptr_nonnull(end);
        end += strlen("</script>");
        memmove(begin, end, strlen(end) + 1);
    }
}

char *browser_shows(const char *path, int width)
{
    if (!browser_find())
        return NULL;
    program p = browser_open(path, width);
    ck_assert_msg(p.exit_code == 0, "%s: exit %d: %.2000s", browser, p.exit_code, p.err);
    ck_assert_msg(strstr(p.err, "CONSOLE") == NULL, "%.3000s", strstr(p.err, "CONSOLE"));
    char *shown = strdup(p.out);
    program_close(&p);
    cut_scripts(shown);
    return shown;
}

json_t *browser_data(const char *text)
{
    static const char begin[] = "<script type=\"application/json\" id=\"data\">";
    ck_assert_int_eq(facts_count(text, "<script"), 2); /* the data, and the program */
    ck_assert_int_eq(facts_count(text, "src="), 0);
    ck_assert_int_eq(facts_count(text, "@import"), 0);
    ck_assert_int_eq(facts_count(text, "http"), facts_count(text, "http://www.w3.org/2000/svg") +
                                                    facts_count(text, "http-equiv"));
    const char *data = strstr(text, begin);
    ck_assert_ptr_nonnull(data);
    data += strlen(begin);
    json_error_t error;
    json_t *value = json_loadb(data, (size_t)(strstr(data, "</script>") - data), 0, &error);
    ck_assert_msg(value != NULL, "%s", error.text);
    return value;
}
