#include "app/options/nearest.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static int smallest(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Inserted, deleted, changed or swapped neighbouring letters that lead from `a` to `b`.
 * Row by row over a's letters: cost[k][j] is the distance of a's first i letters (i mod 3 == k) to
 * b's first j. A swap looks two rows back. */
static int edit_distance(const char *a, const char *b)
{
    int cost[3][NEAREST_BYTES + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > NEAREST_BYTES || m > NEAREST_BYTES)
        return INT_MAX;
    for (int j = 0; j <= m; j++)
        cost[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = cost[i % 3];
        const int *above = cost[(i + 2) % 3], *two_above = cost[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smallest(change, above[j] + 1, row[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return cost[n % 3][m];
}

void nearest_init(nearest *search, const char *word)
{
    *search = (nearest){.word = word, .distance = INT_MAX};
}

void nearest_offer(nearest *search, const char *candidate)
{
    /* One edit in three letters: more is another word. */
    int allowed = (int)strlen(search->word) / 3;
    if (allowed < 1)
        allowed = 1;
    int distance = edit_distance(search->word, candidate);
    if (distance > allowed || distance >= search->distance)
        return;
    search->distance = distance;
    snprintf(search->best, sizeof search->best, "%s", candidate);
}

bool nearest_found(const nearest *search)
{
    return search->distance != INT_MAX;
}
