#include "dispatch.h"

#include <fcntl.h>

/*
 * A standard descriptor that was closed is taken with one that refuses the same work. Else the next one opened gets its
 * number, and what is printed or logged goes into a client's socket or the KV arena.
 */
static void hold_standard_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY); /* the lowest free number: this one */
}

int main(int count, char **arguments)
{
	hold_standard_descriptors();
	return okv__dispatch(count, arguments, stdout, stderr);
}
