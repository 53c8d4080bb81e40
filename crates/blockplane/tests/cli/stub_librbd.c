// A stub of librados and librbd for tests without a cluster: one image, whose size is the first 8 bytes of the file
// $STUB_IMAGE_SIZE, as if other clients resized it. It announces changes of the size. All other calls succeed and do nothing.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static const volatile uint64_t *image_size;
static void (*size_changed)(void *);
static void *watch;

// Before the sandbox.
__attribute__((constructor)) static void map_image_size(void) {
    int fd = open(getenv("STUB_IMAGE_SIZE"), O_RDONLY);
    image_size = mmap(NULL, sizeof *image_size, PROT_READ, MAP_SHARED, fd, 0);
    if (image_size == MAP_FAILED)
        abort();
}

static void *announce_changes(void *unused) {
    (void)unused;
    for (uint64_t known = *image_size;; usleep(1000)) {
        if (known != *image_size) {
            known = *image_size;
            size_changed(watch);
        }
    }
}

int rbd_update_watch(void *image, uint64_t *handle, void (*callback)(void *), void *argument) {
    (void)image;
    pthread_t thread;
    size_changed = callback;
    watch = argument;
    *handle = 1;
    return -pthread_create(&thread, NULL, announce_changes, NULL);
}

struct image_info {
    uint64_t size, object_bytes, objects;
    int order;
    char block_name_prefix[24];
    int64_t parent_pool;
    char parent_name[96];
};

int rbd_stat(void *image, struct image_info *info, size_t bytes) {
    (void)image;
    memset(info, 0, bytes);
    info->size = *image_size;
    info->object_bytes = 4 << 20;
    return 0;
}

static int set(uint64_t *value, uint64_t to) {
    *value = to;
    return 0;
}

int rbd_get_size(void *image, uint64_t *size) { (void)image; return set(size, *image_size); }
int rbd_get_stripe_unit(void *image, uint64_t *bytes) { (void)image; return set(bytes, 4 << 20); }
int rbd_get_stripe_count(void *image, uint64_t *count) { (void)image; return set(count, 1); }
int rbd_get_features(void *image, uint64_t *features) { (void)image; return set(features, 0); }

// No watchers, no metadata, an empty id and identity.
int rbd_watchers_list(void *image, void *watchers, size_t *count) { (void)image; (void)watchers; *count = 0; return 0; }
int rbd_get_id(void *image, char *id, size_t bytes) { (void)image; memset(id, 0, bytes); return 0; }
int rados_cluster_fsid(void *cluster, char *fsid, size_t bytes) { (void)cluster; memset(fsid, 0, bytes); return 0; }
int rbd_metadata_list(void *image, const char *start, uint64_t most, char *keys, size_t *key_bytes, char *values,
                      size_t *value_bytes) {
    (void)image; (void)start; (void)most; (void)keys; (void)values;
    *key_bytes = *value_bytes = 0;
    return 0;
}

#define SUCCEEDS(name) int name(void) { return 0; }
SUCCEEDS(rados_create) SUCCEEDS(rados_conf_read_file) SUCCEEDS(rados_conf_set) SUCCEEDS(rados_connect)
SUCCEEDS(rados_shutdown) SUCCEEDS(rados_ioctx_create) SUCCEEDS(rados_ioctx_set_namespace)
SUCCEEDS(rados_set_pool_full_try) SUCCEEDS(rados_exec) SUCCEEDS(rados_break_lock) SUCCEEDS(rados_blocklist_add)
SUCCEEDS(rados_ioctx_destroy) SUCCEEDS(rbd_open) SUCCEEDS(rbd_open_read_only) SUCCEEDS(rbd_close)
SUCCEEDS(rbd_get_flags) SUCCEEDS(rbd_get_overlap) SUCCEEDS(rbd_update_unwatch) SUCCEEDS(rbd_resize)
SUCCEEDS(rbd_flush) SUCCEEDS(rbd_diff_iterate2) SUCCEEDS(rbd_is_exclusive_lock_owner) SUCCEEDS(rbd_lock_acquire)
SUCCEEDS(rbd_lock_release) SUCCEEDS(rbd_watchers_list_cleanup) SUCCEEDS(rbd_aio_create_completion)
SUCCEEDS(rbd_aio_release) SUCCEEDS(rbd_aio_readv) SUCCEEDS(rbd_aio_writev) SUCCEEDS(rbd_aio_flush)
SUCCEEDS(rbd_aio_discard) SUCCEEDS(rbd_aio_write_zeroes)
ssize_t rados_list_lockers(void) { return 0; }
ssize_t rbd_aio_get_return_value(void) { return 0; }
uint64_t rados_get_instance_id(void) { return 1; }
int rados_conf_get(void *cluster, const char *option, char *value, size_t bytes) {
    (void)cluster; (void)option;
    memset(value, 0, bytes);
    return 0;
}
