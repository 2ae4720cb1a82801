/* Dispatch: from the words of the command line to one command. Apart from main() so that a test can call it. */
#ifndef OKV_APP_DISPATCH_H
#define OKV_APP_DISPATCH_H

#include <stdio.h>

enum { OKV__EXIT_OK = 0, OKV__EXIT_FAILED = 1, OKV__EXIT_USAGE = 2 };

/* What main() returns. Help and version go to `out`, complaints to `complaints`. A program called orbitkv-cache-manager
 * is `orbitkv manager`. */
int okv__dispatch(int count, char *const *arguments, FILE *out, FILE *complaints);

#endif
