#include "dispatch.h"

int main(int count, char **arguments)
{
	return okv__dispatch(count, arguments, stdout, stderr);
}
