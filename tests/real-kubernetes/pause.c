/* The first process of a pod: it keeps the pod's namespaces, collects the ended processes that come to it, and ends when it is asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on(int signal)
{
	if (signal != SIGCHLD)
		_exit(0);
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

int main(void)
{
	signal(SIGTERM, on);
	signal(SIGINT, on);
	signal(SIGCHLD, on);
	for (;;)
		pause();
}
