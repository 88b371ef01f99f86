/* context.c: the caller's registers, saved in the caller and resumed in a command with PREEXEC: see arch/. */
#include "sys.h"

ARCH_SAVE_AND_RESUME;
