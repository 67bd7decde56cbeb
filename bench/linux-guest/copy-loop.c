/* Each thread copies a file of its own on tmpfs and removes the copy: the threads meet in the kernel's locks of the directory and
   of the memory for pages. */
#include "loops.h"

#include <fcntl.h>

enum { FILE_BYTES = 65536 };

static const char *directory = "/tmp";

static uint64_t turn(struct loop_thread *self) {
    static _Thread_local char buffer[FILE_BYTES];
    char source[64], copy[64];
    snprintf(source, sizeof source, "%s/source.%u", directory, self->number);
    snprintf(copy, sizeof copy, "%s/copy.%u", directory, self->number);
    int from = open(source, O_RDWR | O_CREAT, 0600), to = open(copy, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (from < 0 || to < 0)
        loop_fails("open");
    /* The first turn writes what the others read. */
    if (lseek(from, 0, SEEK_END) == 0 && write(from, buffer, FILE_BYTES) != FILE_BYTES)
        loop_fails("write");
    if (pread(from, buffer, FILE_BYTES, 0) != FILE_BYTES || write(to, buffer, FILE_BYTES) != FILE_BYTES)
        loop_fails("copy");
    close(from);
    close(to);
    if (unlink(copy) != 0)
        loop_fails("unlink");
    return 1;
}

int main(int count, char **words) {
    return loop_main(count, words, "copy-loop", "files/s", turn);
}
