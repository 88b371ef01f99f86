/* needs.c: what must go together on a command line, and what must not. */
#include "line.h"

/* What bubblewrap refuses before it looks for a command; no user namespace is implied yet. */
void needs_of_namespaces(struct reader *r)
{
    const nsbox_bwrap_line *line = r->line;
    bool is_new = line->unshare & NSBOX_BWRAP_USER, joins = line->fd[NSBOX_BWRAP_USERNS] >= 0;
    bool blocks = line->fd[NSBOX_BWRAP_USERNS_BLOCK] >= 0, limits = line->flags & NSBOX_BWRAP_DISABLE_USERNS;
    if (blocks && !is_new)
        DIE(r, "--userns-block-fd requires --unshare-user");
    if (blocks && line->fd[NSBOX_BWRAP_INFO] < 0)
        DIE(r, "--userns-block-fd requires --info-fd");
    if (joins && is_new)
        DIE(r, "--userns is not compatible with --unshare-user");
    if (joins && (line->wanted & NSBOX_BWRAP_USER))
        DIE(r, "--userns is not compatible with --unshare-user-try");
    if (limits && !is_new)
        DIE(r, "--disable-userns requires --unshare-user");
    if (limits && blocks)
        DIE(r, "--disable-userns is not compatible with --userns-block-fd");
}

/* Options without the namespace that they need. An attempt at a user namespace counts as one. */
void needs_of_options(struct reader *r, uint32_t uid, uint32_t gid)
{
    const nsbox_bwrap_line *line = r->line;
    bool has_user =
        uid != 0 || ((line->unshare | line->wanted) & NSBOX_BWRAP_USER) || line->fd[NSBOX_BWRAP_USERNS] >= 0;
    if (!has_user && line->id[NSBOX_BWRAP_UID] >= 0 && line->id[NSBOX_BWRAP_UID] != uid)
        DIE(r, "Specifying --uid requires --unshare-user or --userns");
    if (!has_user && line->id[NSBOX_BWRAP_GID] >= 0 && line->id[NSBOX_BWRAP_GID] != gid)
        DIE(r, "Specifying --gid requires --unshare-user or --userns");
    if (line->text[NSBOX_BWRAP_HOSTNAME] && !(line->unshare & NSBOX_BWRAP_UTS))
        DIE(r, "Specifying --hostname requires --unshare-uts");
    if (!(line->flags & NSBOX_BWRAP_AS_PID_1))
        return;
    if (!(line->unshare & NSBOX_BWRAP_PID))
        DIE(r, "Specifying --as-pid-1 requires --unshare-pid");
    if (r->lock_files.n)
        DIE(r, "Specifying --as-pid-1 and --lock-file is not permitted");
}
