/* What the locks of Concurrency Kit have in common here. Its headers must be installed: libck-dev on Debian. Nothing of a lock is
 * changed, but each pause in its loops (ck_pr_stall) also tells Haltkick that the vCPU waits. */
#include "haltkick.h"

#include <ck_pr.h>

#define ck_pr_stall() hk_pause()
