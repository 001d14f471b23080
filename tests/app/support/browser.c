#include "tests/app/support/browser.h"

#include "tests/app/support/test_folder.h"
#include "tests/support/facts.h"

#include <stdlib.h>
#include <string.h>

static const char *browser;

static bool is_there(const char *name)
{
    program p = program_start(WORDS(name, "--version"));
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
    program p = program_start(WORDS(browser, "--headless", "--no-sandbox", "--disable-gpu",
                                    "--disable-dev-shm-usage", "--disable-background-networking",
                                    "--force-prefers-reduced-motion", "--enable-logging=stderr",
                                    "--v=0", "--virtual-time-budget=500", size, profile,
                                    "--dump-dom", url)); /* after the frames of half a second */
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

program browser_run(const char *name, int width)
{
    program p = browser_open(test_folder_path(name), width);
    ck_assert_msg(p.exit_code == 0, "%s: exit %d: %.2000s", browser, p.exit_code, p.err);
    ck_assert_msg(strstr(p.err, "CONSOLE") == NULL, "%.3000s", strstr(p.err, "CONSOLE"));
    return p;
}

char *browser_shows(const char *name, int width)
{
    if (!browser_find())
        return NULL;
    program p = browser_run(name, width);
    char *shown = strdup(p.out);
    program_close(&p);
    cut_scripts(shown);
    return shown;
}

/* A loaded machine may show no frame before the browser's time is up: timers stand for frames. */
static const char FRAMES[] =
    "<!DOCTYPE html><script>window.requestAnimationFrame = draw => setTimeout(() => "
    "draw(performance.now()), 16);</script>";

void browser_probe(const char *path, const char *script, const char *probed)
{
    char *page = test_folder_read(path);
    FILE *copy = fopen(probed, "w");
    ck_assert_ptr_nonnull(copy);
    fprintf(copy, "%s%s<script>{%s}</script>", FRAMES, page, script);
    ck_assert_int_eq(fclose(copy), 0);
    free(page);
}

/* Frames are as narrow as a phone, too: headless Chromium has no window under 500 pixels. */
program browser_windows(const char *const *pages, int n, const char *probe)
{
    FILE *around = fopen("windows.html", "w");
    ck_assert_ptr_nonnull(around);
    fputs("<!DOCTYPE html><body><script>addEventListener('message', event => "
          "document.body.append(`seen: ${event.data}\n`));</script>",
          around);
    for (int i = 0; i < BROWSER_WINDOWS * n; i++) {
        char name[32];
        snprintf(name, sizeof name, "window-%d.html", i / BROWSER_WINDOWS);
        browser_probe(pages[i / BROWSER_WINDOWS], probe, name);
        fprintf(around,
                "<iframe src=\"%s\" style=\"width:%dpx;height:3000px;border:0;color-scheme:%s\">"
                "</iframe>",
                name, i % 4 < 2 ? 400 : 1400, i % 2 == 0 ? "light" : "dark");
    }
    ck_assert_int_eq(fclose(around), 0);
    return browser_run("windows.html", 1400);
}

void browser_check_looks(const char *const *pages, int n)
{
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/tests/app/support/looks.js", getenv("SOURCE_DIR"));
    char *looks = test_folder_read(path);
    program p = browser_windows(pages, n, looks);
    ck_assert_msg(facts_count(p.out, " fine\n") == BROWSER_WINDOWS * n, "%.3000s",
                  strstr(p.out, "seen: "));
    program_close(&p);
    free(looks);
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
