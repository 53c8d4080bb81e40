// A stub of librados and librbd for tests without a cluster: one image without data. The file $STUB_CONTROL has its size and what other
// clients and the cluster do, and shows the test what the daemon has done. Calls that are not here succeed and do nothing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

// The same order as in `stub_image.rs`.
static volatile struct control {
    // Written by the test.
    uint64_t image_size, features, holds_requests, holds_metadata, holds_features;
    // Written here.
    uint64_t announced_size, metadata_reads, feature_reads, requests, owns_lock, closed;
} *control;

// Before the sandbox.
__attribute__((constructor)) static void map_control(void) {
    int fd = open(getenv("STUB_CONTROL"), O_RDWR);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        abort();
}

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*header_changed)(void *);
static void *watch;
static uint64_t watch_handle, known_size;

static void announce_change(void) {
    pthread_mutex_lock(&watch_lock);
    if (watch && known_size != control->image_size) {
        known_size = control->image_size;
        header_changed(watch);
        control->announced_size = known_size;
    }
    pthread_mutex_unlock(&watch_lock);
}

int rbd_update_watch(void *image, uint64_t *handle, void (*callback)(void *), void *argument) {
    (void)image;
    pthread_mutex_lock(&watch_lock);
    header_changed = callback;
    watch = argument;
    known_size = control->image_size;
    *handle = ++watch_handle;
    pthread_mutex_unlock(&watch_lock);
    return 0;
}

// An image that was closed late has no part in the present watch.
int rbd_update_unwatch(void *image, uint64_t handle) {
    (void)image;
    pthread_mutex_lock(&watch_lock);
    if (handle == watch_handle)
        watch = NULL;
    pthread_mutex_unlock(&watch_lock);
    return 0;
}

int rbd_lock_acquire(void *image, int mode) { (void)image; (void)mode; control->owns_lock = 1; return 0; }
int rbd_lock_release(void *image) { (void)image; control->owns_lock = 0; return 0; }
int rbd_is_exclusive_lock_owner(void *image, int *owns) { (void)image; *owns = control->owns_lock != 0; return 0; }

// Counts what was closed on an image's thread.
int rbd_close(void *image) {
    (void)image;
    char thread[16];
    control->owns_lock = 0;
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    control->closed += strcmp(thread, "ceph") == 0;
    return 0;
}

struct completion {
    void (*callback)(struct completion *, void *);
    void *argument;
    struct completion *next;
};

static pthread_mutex_t requests_lock = PTHREAD_MUTEX_INITIALIZER;
static struct completion *requests;

static void complete_requests(void) {
    pthread_mutex_lock(&requests_lock);
    struct completion *done = control->holds_requests ? NULL : requests;
    if (done)
        requests = NULL;
    pthread_mutex_unlock(&requests_lock);
    while (done) {
        struct completion *next = done->next;
        done->callback(done, done->argument);
        done = next;
    }
}

static void *call_back(void *unused) {
    for (;; usleep(1000)) {
        announce_change();
        complete_requests();
    }
    return unused;
}

static int start(struct completion *completion) {
    pthread_mutex_lock(&requests_lock);
    completion->next = requests;
    requests = completion;
    control->requests += 1;
    pthread_mutex_unlock(&requests_lock);
    return 0;
}

int rbd_open(void *pool, const char *name, void **image, const char *snapshot) {
    (void)pool; (void)name; (void)image; (void)snapshot;
    static pthread_t thread;
    return thread ? 0 : -pthread_create(&thread, NULL, call_back, NULL);
}

int rbd_aio_create_completion(void *argument, void (*callback)(struct completion *, void *), struct completion **created) {
    *created = malloc(sizeof **created);
    **created = (struct completion){callback, argument, NULL};
    return 0;
}

void rbd_aio_release(struct completion *completion) { free(completion); }
ssize_t rbd_aio_get_return_value(struct completion *completion) { (void)completion; return 0; }
int rbd_aio_flush(void *image, struct completion *completion) { (void)image; return start(completion); }

// Data are not stored: reads return zeroes.
int rbd_aio_readv(void *image, const void *parts, int count, uint64_t offset, struct completion *completion) {
    (void)image; (void)parts; (void)count; (void)offset;
    return start(completion);
}

int rbd_aio_writev(void *image, const void *parts, int count, uint64_t offset, struct completion *completion) {
    (void)image; (void)parts; (void)count; (void)offset;
    return start(completion);
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
    info->size = control->image_size;
    info->object_bytes = 4 << 20;
    return 0;
}

static int set(uint64_t *value, uint64_t to) {
    *value = to;
    return 0;
}

int rbd_get_size(void *image, uint64_t *size) { (void)image; return set(size, control->image_size); }
int rbd_get_stripe_unit(void *image, uint64_t *bytes) { (void)image; return set(bytes, 4 << 20); }
int rbd_get_stripe_count(void *image, uint64_t *count) { (void)image; return set(count, 1); }

static void count_and_wait(volatile uint64_t *calls, volatile uint64_t *held) {
    *calls += 1;
    while (*held)
        usleep(1000);
}

// Read when an image is opened, between its size and its metadata.
int rbd_get_features(void *image, uint64_t *features) {
    (void)image;
    count_and_wait(&control->feature_reads, &control->holds_features);
    return set(features, control->features);
}

// No watchers, no metadata, an empty id and identity. The metadata are read when an image is opened, after its size.
int rbd_watchers_list(void *image, void *watchers, size_t *count) { (void)image; (void)watchers; *count = 0; return 0; }
int rbd_get_id(void *image, char *id, size_t bytes) { (void)image; memset(id, 0, bytes); return 0; }
int rados_cluster_fsid(void *cluster, char *fsid, size_t bytes) { (void)cluster; memset(fsid, 0, bytes); return 0; }
int rbd_metadata_list(void *image, const char *start, uint64_t most, char *keys, size_t *key_bytes, char *values,
                      size_t *value_bytes) {
    (void)image; (void)start; (void)most; (void)keys; (void)values;
    count_and_wait(&control->metadata_reads, &control->holds_metadata);
    *key_bytes = *value_bytes = 0;
    return 0;
}

#define SUCCEEDS(name) int name(void) { return 0; }
SUCCEEDS(rados_create) SUCCEEDS(rados_conf_read_file) SUCCEEDS(rados_conf_set) SUCCEEDS(rados_connect)
SUCCEEDS(rados_shutdown) SUCCEEDS(rados_ioctx_create) SUCCEEDS(rados_ioctx_set_namespace)
SUCCEEDS(rados_set_pool_full_try) SUCCEEDS(rados_exec) SUCCEEDS(rados_break_lock) SUCCEEDS(rados_blocklist_add)
SUCCEEDS(rados_ioctx_destroy) SUCCEEDS(rbd_open_read_only)
SUCCEEDS(rbd_get_flags) SUCCEEDS(rbd_get_overlap) SUCCEEDS(rbd_resize)
SUCCEEDS(rbd_flush) SUCCEEDS(rbd_diff_iterate2)
SUCCEEDS(rbd_watchers_list_cleanup)
SUCCEEDS(rbd_aio_discard) SUCCEEDS(rbd_aio_write_zeroes)
ssize_t rados_list_lockers(void) { return 0; }
uint64_t rados_get_instance_id(void) { return 1; }
int rados_conf_get(void *cluster, const char *option, char *value, size_t bytes) {
    (void)cluster; (void)option;
    memset(value, 0, bytes);
    return 0;
}
