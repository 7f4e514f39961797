/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What rust/kernel needs from C: inline functions, macros, and exported
 * functions whose headers the kernel crate's bindings do not see.
 *
 * This file includes nothing, so that bindgen can read it with no kernel flags;
 * shim.c includes it together with the real headers, so that the C compiler
 * checks each prototype against the function it names. Types that
 * kernel::bindings has are taken from there.
 */
#ifndef SKUA_SHIM_H
#define SKUA_SHIM_H

struct device;
struct dma_fence;
struct dma_fence_chain;
struct dma_resv;
struct delayed_work;
struct dmem_cgroup_pool_state;
struct dmem_cgroup_region;
struct drm_device;
struct drm_file;
struct drm_gem_lru;
struct drm_gem_object;
struct drm_printer;
struct drm_syncobj;
struct file;
struct file_operations;
struct inode;
struct mem_cgroup;
struct page;
struct seq_file;
struct shrinker;
struct vm_area_struct;
struct vm_fault;
struct work_struct;
struct ww_acquire_ctx;

/* include/drm/drm_drv.h, include/linux/sched.h */
void skua_task_current(int *pid, char *name);
int skua_drm_wedged(struct drm_device *dev, unsigned long method, int pid, const char *name);

/* include/linux/devcoredump.h */
void skua_coredump(struct drm_device *dev, void *data, unsigned long bytes);

/* include/linux/dma-fence.h */
void skua_fence_get(struct dma_fence *fence);
void skua_fence_put(struct dma_fence *fence);
_Bool skua_fence_is_signaled(struct dma_fence *fence);
_Bool skua_fence_test_signaled_flag(struct dma_fence *fence);
struct dma_fence *skua_fence_all(struct dma_fence **fences, int count);
void skua_fence_set_error(struct dma_fence *fence, int error);
_Bool skua_fence_begin_signalling(void);
void skua_fence_end_signalling(_Bool cookie);
void skua_fence_renew_signalling(void);

/* include/linux/dma-fence-chain.h */
struct dma_fence_chain *skua_chain_alloc(void);
void skua_chain_free(struct dma_fence_chain *chain);
int skua_fence_status(struct dma_fence *fence);

/* include/linux/dma-resv.h */
int skua_resv_lock_interruptible(struct dma_resv *resv, struct ww_acquire_ctx *ticket);
int skua_resv_lock_slow_interruptible(struct dma_resv *resv, struct ww_acquire_ctx *ticket);
_Bool skua_resv_trylock(struct dma_resv *resv, struct ww_acquire_ctx *ticket);
void skua_resv_unlock(struct dma_resv *resv);
/* Calls f with each fence of exactly this usage; resv is locked. */
void skua_resv_for_each(struct dma_resv *resv, unsigned int usage,
			void (*f)(struct dma_fence *fence, void *data), void *data);
struct dma_fence *skua_resv_singleton(struct dma_resv *resv, unsigned int usage);
void skua_ticket_init(struct ww_acquire_ctx *ticket);
void skua_ticket_fini(struct ww_acquire_ctx *ticket);

/* include/drm/drm_syncobj.h */
struct drm_syncobj *drm_syncobj_find(struct drm_file *file, unsigned int handle);
int drm_syncobj_find_fence(struct drm_file *file, unsigned int handle,
			   unsigned long long point, unsigned long long flags,
			   struct dma_fence **fence);
void drm_syncobj_add_point(struct drm_syncobj *syncobj, struct dma_fence_chain *chain,
			   struct dma_fence *fence, unsigned long long point);
void drm_syncobj_replace_fence(struct drm_syncobj *syncobj, struct dma_fence *fence);
int drm_syncobj_create(struct drm_syncobj **out, unsigned int flags, struct dma_fence *fence);
void skua_syncobj_put(struct drm_syncobj *syncobj);
struct dma_fence *skua_syncobj_fence_get(struct drm_syncobj *syncobj);

/* include/drm/drm_print.h, include/drm/drm_debugfs.h */
void drm_printf(struct drm_printer *p, const char *f, ...);
void skua_debugfs_add_file(struct drm_device *dev, const char *name,
			   int (*show)(struct seq_file *m, void *unused), void *data);
struct drm_device *skua_debugfs_dev(struct seq_file *m);
void *skua_debugfs_data(struct seq_file *m);

/* include/drm/drm_gem.h, include/drm/drm_vma_manager.h */
int skua_gem_mmap(struct drm_gem_object *obj, struct vm_area_struct *vma);
void skua_gem_unmap(struct drm_gem_object *obj);
void skua_gem_unmap_at(struct drm_device *dev, long long offset, long long bytes);
void skua_inode_bring(struct inode *inode, unsigned long long size);
void skua_inode_discard(struct inode **place);
struct inode *skua_inode_get(struct inode **place);
struct inode *skua_inode_at(struct inode **place, unsigned long long size);
unsigned long skua_gem_unmap_all(struct drm_device *dev);
long skua_gem_lru_pages(struct drm_device *dev, const struct drm_gem_lru *lru);
struct drm_gem_object *skua_gem_lru_behind(struct drm_device *dev, struct drm_gem_lru *lru,
					   struct drm_gem_object *last, _Bool back);

/* include/drm/drm_file.h, the loop of drm_show_memory_stats() */
typedef void (*skua_visit_fn)(struct drm_gem_object *obj, _Bool shared, void *data);
void skua_file_visit_objects(struct drm_file *file, void *data, skua_visit_fn visit);

/* include/drm/drm_file.h, the loop of drm_clients_info(); name has 16 bytes at most */
typedef void (*skua_client_fn)(struct drm_file *file, unsigned long long id, int pid,
			       const char *name, void *data);
void skua_drm_visit_clients(struct drm_device *dev, void *data, skua_client_fn visit);

/* include/linux/mm.h */
unsigned int skua_fault_reserve(struct vm_fault *vmf, struct drm_gem_object *obj);
unsigned long skua_fault_page(struct vm_fault *vmf, struct drm_gem_object *obj);
unsigned long skua_fault_pages_after(struct vm_fault *vmf);
unsigned int skua_fault_insert(struct vm_fault *vmf, unsigned long ahead, unsigned long pfn,
			       _Bool wc, _Bool io, _Bool write);
unsigned int skua_fault_bring(struct vm_fault *vmf, struct drm_gem_object *obj,
			      struct inode *inode);
unsigned int skua_fault_wait_kernel(struct vm_fault *vmf, struct drm_gem_object *obj);

/* drm_gem_get_pages(), drm_gem_put_pages() */
struct page **skua_pages_get(struct inode *inode, unsigned long long size);
void skua_pages_put(struct inode *inode, unsigned long long size, struct page **pages, _Bool dirty);
unsigned long skua_page_to_pfn(struct page *page);
int skua_pages_set_wc(struct page **pages, unsigned long count);
void skua_pages_set_wb(struct page **pages, unsigned long count);

/* include/linux/cgroup_dmem.h, whose functions are empty inlines where it is not configured */
struct skua_dmem_owner {
	int (*reclaim)(struct dmem_cgroup_pool_state *pool, unsigned long long bytes, void *dev);
	void *dev;
};
struct dmem_cgroup_region *skua_dmem_register(const char *name, unsigned long long size,
					      struct skua_dmem_owner *owner);
void skua_dmem_unregister(struct dmem_cgroup_region *region);
int skua_dmem_try_charge(struct dmem_cgroup_region *region, unsigned long long size,
			 struct dmem_cgroup_pool_state **pool,
			 struct dmem_cgroup_pool_state **limit);
void skua_dmem_uncharge(struct dmem_cgroup_pool_state *pool, unsigned long long size);
void skua_dmem_put(struct dmem_cgroup_pool_state *pool);
_Bool skua_dmem_evict_valuable(struct dmem_cgroup_pool_state *limit,
			       struct dmem_cgroup_pool_state *pool, _Bool ignore_low,
			       _Bool *hit_low);
struct dmem_cgroup_pool_state *skua_dmem_common_ancestor(struct dmem_cgroup_pool_state *a,
							 struct dmem_cgroup_pool_state *b);

/* include/linux/memcontrol.h, include/linux/sched/mm.h */
struct mem_cgroup *skua_memcg_get(void);
struct mem_cgroup *skua_memcg_set_active(struct mem_cgroup *group);
void skua_memcg_put(struct mem_cgroup *group);
unsigned int skua_memcg_set_aside(void);
void skua_memcg_put_back(unsigned int over);
void skua_memcg_spare_worker(void);

/* include/linux/shrinker.h, include/linux/list_lru.h */
struct skua_copies;
struct skua_copy;
struct skua_shrinker_owner {
	unsigned long (*count)(void *dev);
	/* For a group of processes, if there is one, else for all. */
	unsigned long (*scan)(void *dev, struct mem_cgroup *group, unsigned long *pages);
	void *dev;
	struct skua_copies *copies;
};
struct shrinker *skua_shrinker_new(const char *name, struct skua_shrinker_owner *owner);
void skua_shrinker_register(struct shrinker *shrinker);
void skua_shrinker_free(struct shrinker *shrinker);
struct skua_copies *skua_copies_new(struct shrinker *shrinker);
void skua_copies_free(struct skua_copies *copies);
struct skua_copy *skua_copy_new(struct skua_copies *copies, struct page *page,
				unsigned long pages);
void skua_copy_free(struct skua_copies *copies, struct skua_copy *copy);
_Bool skua_page_is_paid_by(struct page *page, const struct mem_cgroup *group);
unsigned long skua_gem_lru_shrink(struct drm_device *dev, struct drm_gem_lru *from,
				  struct drm_gem_lru *to, unsigned long *pages,
				  unsigned long (*shrink)(struct drm_gem_object *obj));
unsigned long skua_gem_lru_drop(struct drm_device *dev, struct drm_gem_lru *lru,
				unsigned long pages, _Bool wait, const void *meant,
				unsigned long (*drop)(struct drm_gem_object *obj,
						      const void *meant));

/* include/linux/workqueue.h */
void skua_init_delayed_work(struct delayed_work *work, void (*func)(struct work_struct *work));

/* include/linux/io.h, include/asm/barrier.h */
int skua_reserve_wc(unsigned long long start, unsigned long long size);
void skua_free_wc(unsigned long long start, unsigned long long size);
void *skua_reserve_cached(unsigned long long start, unsigned long long size);
void skua_free_cached(void *mapping);
void skua_not_leak(const void *object);
_Bool skua_is_kernel_thread(void);
void skua_wmb(void);

/* include/linux/mm.h, include/linux/anon_inodes.h */
void *skua_page_address(struct page *page);
struct file *anon_inode_getfile(const char *name, const struct file_operations *fops, void *priv,
				int flags);

/* include/linux/dma-mapping.h */
_Bool skua_dma_mapping_error(struct device *dev, unsigned long long address);

/* include/linux/highmem.h, for the KUnit suites. */
void skua_kunit_pages_copy(struct page **pages, unsigned long offset, char *bytes,
			   unsigned long count, _Bool write);

/* include/linux/fs_struct.h, for the KUnit suites: opens a file as init would. */
struct file *skua_kunit_open(const char *path, int flags);

/* rust/helpers/trace.c */
void skua_trace_submit(struct drm_device *dev, unsigned int engine, unsigned int context,
		       unsigned long long fence_context, unsigned long long fence_seqno);
void skua_trace_start(struct drm_device *dev, unsigned int engine, unsigned int context,
		      unsigned long long fence_context, unsigned long long fence_seqno);
void skua_trace_paging(struct drm_device *dev, unsigned int engine,
		       unsigned long long fence_context, unsigned long long fence_seqno,
		       unsigned long long piece, unsigned long long page, _Bool idle, _Bool last);
void skua_trace_resume(struct drm_device *dev, unsigned int engine, unsigned int context,
		       unsigned long long fence_context, unsigned long long fence_seqno);
void skua_trace_packet(struct drm_device *dev, unsigned int engine, unsigned int context,
		       unsigned long long fence_context, unsigned long long fence_seqno,
		       unsigned long long packet, _Bool again);
_Bool skua_trace_depend_is_on(void);
void skua_trace_depend(struct drm_device *dev, unsigned long long fence_context,
		       unsigned long long fence_seqno, struct dma_fence *on);
void skua_trace_signal(struct drm_device *dev, unsigned long long fence_context,
		       unsigned long long fence_seqno, unsigned long long monitored,
		       unsigned long long value);
void skua_trace_await(struct drm_device *dev, unsigned long long fence_context,
		      unsigned long long fence_seqno, unsigned long long monitored,
		      unsigned long long value, unsigned long long held);
void skua_trace_move(struct drm_device *dev, unsigned long long fence_context,
		     unsigned long long fence_seqno, const char *from, const char *to,
		     unsigned long long bytes, _Bool clean);
void skua_trace_memory(struct drm_device *dev, const char *region, unsigned long long used,
		       unsigned long long size);
void skua_trace_preempt(struct drm_device *dev, unsigned int engine);
void skua_trace_reset(struct drm_device *dev, unsigned int engine);
void skua_trace_adapter_reset(struct drm_device *dev);
void skua_trace_lost(struct drm_device *dev);
void skua_trace_preempted(struct drm_device *dev, unsigned int engine, unsigned int context,
			  unsigned long long fence_context, unsigned long long fence_seqno,
			  unsigned int stop);
void skua_trace_done(struct drm_device *dev, unsigned int engine, unsigned int context,
		     unsigned long long fence_context, unsigned long long fence_seqno, int error);
void skua_trace_fault(struct drm_device *dev, unsigned int engine, unsigned int context,
		      unsigned int reason, unsigned long long address);
#define SKUA_HELD 7 /* as rust/kernel/trace.rs has it */
_Bool skua_trace_no_room_is_on(void);
void skua_trace_no_room(struct drm_device *dev, const char *region, unsigned long long bytes,
			_Bool needed, const unsigned long long held[SKUA_HELD]);
void skua_trace_no_quota(struct drm_device *dev, const char *quota, const char *of,
			 unsigned long long units, unsigned long long used,
			 unsigned long long excess);

#endif /* SKUA_SHIM_H */
