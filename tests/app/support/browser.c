#include "tests/app/support/browser.h"

#include "tests/app/support/test_folder.h"

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
