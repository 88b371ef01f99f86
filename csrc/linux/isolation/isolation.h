/* isolation.h: what sets a command apart from the caller: namespaces and the ids in them, its net, what it may not do.
 *
 * Each step is one process's, and works on itself. Which process takes it and when is decided in process/.
 */
#ifndef NSBOX_ISOLATION_H
#define NSBOX_ISOLATION_H

#include "job/job.h"

/* namespaces.c */
int enter_namespaces(struct job *j);
int limit_userns(struct job *j);
int limit_inotify(struct job *j);

/* maps.c */
enum { MAPS_DENY = 1, MAPS_PATIENT = 2 };
static inline unsigned how_to_map(const nsbox_request *r)
{
    return (r->flags & NSBOX_DENY_SETGROUPS ? MAPS_DENY : 0U) | (r->kernel_uid ? MAPS_PATIENT : 0U);
}
int write_maps(int dir, const char *path, const char *uids, const char *gids, unsigned how, uint32_t *step);
int limit_userns(struct job *j);
int limit_inotify(struct job *j);
int start_map2_helper(struct job *j);
void await_map2_helper(struct job *j);
int enter_second_userns(struct job *j, uint32_t *step);
int check_no_userns(const nsbox_request *r, uint32_t *step);
int write_file(int dir, const char *path, const char *text);
int write_maps(int dir, const char *path, const char *uids, const char *gids, unsigned how, uint32_t *step);
int unshare_with_helper(struct job *j, unsigned long namespaces);

/* userns2.c */
int make_userns2(struct job *j);
int start_map2_helper(struct job *j);
void await_map2_helper(struct job *j);
int enter_second_userns(struct job *j, uint32_t *step);
int check_no_userns(const nsbox_request *r, uint32_t *step);

/* kernel_id.c */
enum { LOOKS = 15000 };
void pause_look(int look);
int take_kernel_ids(struct job *j);
void restore_dumpable(const struct job *j, int mediator);
void share_pipes(const nsbox_request *r);

/* sources.c */
int open_sources(struct job *j, int32_t *at);

/* net.c */
int own_net(void);
int make_net(struct job *j);
int make_net_early(struct job *j);
int net_without_init(struct job *j, int32_t *op);
int net_await(struct job *j);
int net_outcome(struct job *j, int32_t *op);
int net_join(struct job *j, uint32_t *step, int32_t *op);
int net_join_first(struct job *j, int32_t *op);
int net_leaves_lo(struct job *j);
int net_finish(struct job *j, int32_t *op);

/* relay.c */
int relay_prepare(struct job *j);
int relay_open(int relay, uint64_t id, int outlives, int net, int answer);
int relay_answer(int answer, int lifeline, char *detail, size_t room);
int relay_show(struct job *j, int net); /* net: a descriptor of the net namespace, or -errno; closed */
int relay_await(struct job *j);

/* landlock.c */
int landlock_confine(const nsbox_request *r, uint32_t *step, int32_t *at);

/* privileges.c */
int limit_bounding_set(uint64_t keep, int plain, uint32_t *step);
int set_ids(const nsbox_request *r, uint32_t *step);
int install_filters(const nsbox_request *r, uint32_t from, uint32_t to);
int install_early_filters(const nsbox_request *r, uint32_t *step);
int set_limits(const nsbox_request *r);
int limit_core(const nsbox_request *r, uint32_t *step);
void limit_own_core(void);
int drop_capabilities(const nsbox_request *r, uint32_t *step);

#endif
