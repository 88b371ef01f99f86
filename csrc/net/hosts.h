/* hosts.h: the host's own table of names, hosts(5), as text. Pure. */
#ifndef NSBOX_NET_HOSTS_H
#define NSBOX_NET_HOSTS_H

/* Does this line give an address to this name? */
int hosts_line_has(const char *line, const char *name);

#endif
