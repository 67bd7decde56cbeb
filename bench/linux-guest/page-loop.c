/* All threads map, touch and unmap memory of the one address space: they meet in the kernel's lock of that, and each unmapping
   interrupts the CPUs of the others (TLB shootdown). What ebizzy does. */
#include "loops.h"

#include <sys/mman.h>

enum { PAGE_BYTES = 4096, PAGES = 64 };

static uint64_t turn(struct loop_thread *self) {
    (void)self;
    char *memory = mmap(NULL, PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        loop_fails("mmap");
    for (unsigned page = 0; page < PAGES; page++)
        *(volatile char *)(memory + page * PAGE_BYTES) = 1;
    if (munmap(memory, PAGES * PAGE_BYTES) != 0)
        loop_fails("munmap");
    return PAGES;
}

int main(int count, char **words) {
    return loop_main(count, words, "page-loop", "pages/s", turn);
}
