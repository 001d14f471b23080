/* An archive needs one object. */
typedef int tests_support_empty;
