/* The first program of a Linux guest: runs what `run=` on the kernel's command line names, prints what the kernel counts of its
   locks, and powers off.

   run=NAME[:ARGUMENT...],...   /bin/NAME with its arguments, one after the other
*/
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOCK_EVENTS "/sys/kernel/debug/lock_event_counts"

enum { MOST_WORDS = 16 };

/* What is not there is done without: a kernel without debugfs counts no lock events. */
static int mount_at(const char *type, const char *where) {
    mkdir(where, 0755);
    int failed = mount(type, where, type, 0, NULL);
    if (failed && errno != EBUSY)
        printf("init: no %s at %s: %s\n", type, where, strerror(errno));
    return !failed;
}

/* The word of the kernel's command line that begins with `prefix`, without it; NULL if there is none. */
static char *word_of_cmdline(const char *prefix) {
    static char line[4096];
    FILE *file = fopen("/proc/cmdline", "r");
    if (!file || !fgets(line, sizeof line, file))
        return NULL;
    fclose(file);
    char *rest = line, *word;
    while ((word = strsep(&rest, " \n")))
        if (strncmp(word, prefix, strlen(prefix)) == 0)
            return word + strlen(prefix);
    return NULL;
}

/* NAME[:ARGUMENT...] */
static void run(char *command) {
    char *words[MOST_WORDS + 1] = {0}, path[256];
    for (int i = 0; i < MOST_WORDS && command; i++)
        words[i] = strsep(&command, ":");
    snprintf(path, sizeof path, "/bin/%s", words[0]);
    pid_t child = fork();
    if (child == 0) {
        execv(path, words);
        printf("init: %s: %s\n", path, strerror(errno));
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        printf("init: %s failed with status %d\n", words[0], status);
}

/* Kernels with CONFIG_LOCK_EVENT_COUNTS have one file for each. */
static void print_lock_events(void) {
    DIR *directory = opendir(LOCK_EVENTS);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        char path[512], count[64];
        snprintf(path, sizeof path, LOCK_EVENTS "/%s", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file)
            continue;
        if (fgets(count, sizeof count, file)) {
            count[strcspn(count, "\n")] = 0;
            printf("haltkick: lock_event.%s=%s count\n", entry->d_name, count);
        }
        fclose(file);
    }
}

int main(void) {
    /* A line is written at once: lines of several programs do not mix. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    mount_at("proc", "/proc");
    mount_at("tmpfs", "/tmp");
    if (mount_at("sysfs", "/sys"))
        mount_at("debugfs", "/sys/kernel/debug");
    printf("user space is there: %ld CPUs\n", sysconf(_SC_NPROCESSORS_ONLN));
    char *commands = word_of_cmdline("run="), *command;
    if (!commands)
        printf("init: no run= on the kernel's command line, so that there is nothing to do\n");
    while (commands && (command = strsep(&commands, ",")))
        run(command);
    print_lock_events();
    sync();
    reboot(RB_POWER_OFF);
    printf("init: the kernel does not power off: %s\n", strerror(errno));
    return 1;
}
