// SPDX-License-Identifier: GPL-2.0
/*
 * C that Rust cannot call by itself: inline functions and macros, one line each
 * where possible. The exceptions are the fault functions, which are TTM's rules
 * (drivers/gpu/drm/ttm/ttm_bo_vm.c) without TTM.
 *
 * shim.h says where each comes from.
 */
#include <linux/anon_inodes.h>
#include <linux/cgroup_dmem.h>
#include <linux/devcoredump.h>
#include <linux/dma-buf.h>
#include <linux/dma-fence-array.h>
#include <linux/dma-fence-chain.h>
#include <linux/dma-fence-unwrap.h>
#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/idr.h>
#include <linux/io.h>
#include <linux/kmemleak.h>
#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/shmem_fs.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include <drm/drm_debugfs.h>
#include <drm/drm_device.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_print.h>
#include <drm/drm_syncobj.h>
#include <drm/drm_vma_manager.h>

#ifdef CONFIG_X86
#include <asm/set_memory.h>
#endif

#include "shim.h"

/* Of the process, not of the thread. @name has room for TASK_COMM_LEN bytes. */
void skua_task_current(int *pid, char *name)
{
	BUILD_BUG_ON(TASK_COMM_LEN != 16);
	*pid = task_tgid_nr(current);
	strscpy_pad(name, current->group_leader->comm, TASK_COMM_LEN);
}

int skua_drm_wedged(struct drm_device *dev, unsigned long method, int pid, const char *name)
{
	struct drm_wedge_task_info info = { .pid = pid };

	if (!name)
		return drm_dev_wedged_event(dev, method, NULL);
	strscpy(info.comm, name, sizeof(info.comm));
	return drm_dev_wedged_event(dev, method, &info);
}

/* Takes over @data, of vmalloc(). */
void skua_coredump(struct drm_device *dev, void *data, unsigned long bytes)
{
	dev_coredumpv(dev->dev, data, bytes, GFP_KERNEL);
}

void skua_fence_get(struct dma_fence *fence)
{
	dma_fence_get(fence);
}

void skua_fence_put(struct dma_fence *fence)
{
	dma_fence_put(fence);
}

/*
 * dma_fence_array_create(), but charged: a client can have many of them made.
 * Takes over the references and the array, or gives the former back and frees
 * the latter.
 */
static struct dma_fence *skua_fence_array(struct dma_fence **fences, int count)
{
	struct dma_fence_array *array;

	array = kzalloc(struct_size(array, callbacks, count),
			GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!array) {
		while (count--)
			dma_fence_put(fences[count]);
		kfree(fences);
		return NULL;
	}
	dma_fence_array_init(array, count, fences, dma_fence_context_alloc(1), 1);
	return &array->base;
}

/*
 * Takes over the references, if it succeeds, and not the array. Of a fence that
 * stands for others these are taken: arrays do not nest.
 */
struct dma_fence *skua_fence_all(struct dma_fence **fences, int count)
{
	struct dma_fence_unwrap iter;
	struct dma_fence *fence, *merged;
	struct dma_fence **flat;
	int i, all = 0;

	for (i = 0; i < count; i++)
		dma_fence_unwrap_for_each(fence, &iter, fences[i])
			all++;
	flat = kmalloc_array(all, sizeof(*flat), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!flat)
		return NULL;
	all = 0;
	for (i = 0; i < count; i++)
		dma_fence_unwrap_for_each(fence, &iter, fences[i])
			flat[all++] = dma_fence_get(fence);
	merged = skua_fence_array(flat, all);
	if (!merged)
		return NULL;
	for (i = 0; i < count; i++)
		dma_fence_put(fences[i]);
	return merged;
}

bool skua_fence_test_signaled_flag(struct dma_fence *fence)
{
	return dma_fence_test_signaled_flag(fence);
}

bool skua_fence_is_signaled(struct dma_fence *fence)
{
	return dma_fence_is_signaled(fence);
}

void skua_fence_set_error(struct dma_fence *fence, int error)
{
	dma_fence_set_error(fence, error);
}

bool skua_fence_begin_signalling(void)
{
	return dma_fence_begin_signalling();
}

void skua_fence_end_signalling(bool cookie)
{
	dma_fence_end_signalling(cookie);
}

/*
 * Lockdep draws no line from a section to a lock that is taken inside of a read-side section of
 * SRCU in it, as that stands between them. So a section that is under way begins anew there.
 */
void skua_fence_renew_signalling(void)
{
	bool is_inside;

	if (!preemptible())
		return;
	is_inside = dma_fence_begin_signalling();
	/* The one that is under way, or this one. */
	dma_fence_end_signalling(false);
	if (is_inside)
		(void)dma_fence_begin_signalling();
}

struct dma_fence_chain *skua_chain_alloc(void)
{
	/* As dma_fence_chain_alloc(), but charged: a client may keep many. */
	return kmalloc(sizeof(struct dma_fence_chain), GFP_KERNEL_ACCOUNT);
}

void skua_chain_free(struct dma_fence_chain *chain)
{
	dma_fence_chain_free(chain);
}

/*
 * A point of a timeline does not take over its fence's error: look at that one. An array has the
 * error of one of its fences only if somebody waited for it before they all had signalled; if it is
 * first asked later, it takes none over (dma_fence_array_signaled()): look at all of them.
 */
int skua_fence_status(struct dma_fence *fence)
{
	struct dma_fence_array *array;
	int status, i;

	status = dma_fence_get_status(fence);
	if (status <= 0)
		return status;
	fence = dma_fence_chain_contained(fence);
	status = dma_fence_get_status(fence);
	array = to_dma_fence_array(fence);
	for (i = 0; array && status > 0 && i < array->num_fences; i++)
		status = dma_fence_get_status(array->fences[i]);
	return status;
}

int skua_resv_lock_interruptible(struct dma_resv *resv, struct ww_acquire_ctx *ticket)
{
	return dma_resv_lock_interruptible(resv, ticket);
}

int skua_resv_lock_slow_interruptible(struct dma_resv *resv, struct ww_acquire_ctx *ticket)
{
	return dma_resv_lock_slow_interruptible(resv, ticket);
}

bool skua_resv_trylock(struct dma_resv *resv, struct ww_acquire_ctx *ticket)
{
	return ww_mutex_trylock(&resv->lock, ticket);
}

void skua_ticket_init(struct ww_acquire_ctx *ticket)
{
	ww_acquire_init(ticket, &reservation_ww_class);
}

void skua_ticket_fini(struct ww_acquire_ctx *ticket)
{
	ww_acquire_fini(ticket);
}

void skua_resv_unlock(struct dma_resv *resv)
{
	dma_resv_unlock(resv);
}

void skua_resv_for_each(struct dma_resv *resv, unsigned int usage,
			void (*f)(struct dma_fence *fence, void *data), void *data)
{
	struct dma_resv_iter cursor;
	struct dma_fence *fence;

	dma_resv_for_each_fence(&cursor, resv, usage, fence)
		if (dma_resv_iter_usage(&cursor) == usage)
			f(fence, data);
}

/* dma_resv_get_singleton() with the lock held, but charged; NULL for -ENOMEM. */
struct dma_fence *skua_resv_singleton(struct dma_resv *resv, unsigned int usage)
{
	struct dma_resv_iter cursor;
	struct dma_fence **fences;
	struct dma_fence *fence;
	int count = 0;

	dma_resv_for_each_fence(&cursor, resv, usage, fence)
		count++;
	if (!count)
		return dma_fence_get_stub();
	fences = kmalloc_array(count, sizeof(*fences),
			       GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!fences)
		return NULL;
	count = 0;
	dma_resv_for_each_fence(&cursor, resv, usage, fence)
		if (!dma_fence_is_signaled(fence))
			fences[count++] = dma_fence_get(fence);
	if (count > 1)
		return skua_fence_array(fences, count);
	fence = count ? fences[0] : dma_fence_get_stub();
	kfree(fences);
	return fence;
}

void skua_syncobj_put(struct drm_syncobj *syncobj)
{
	drm_syncobj_put(syncobj);
}

struct dma_fence *skua_syncobj_fence_get(struct drm_syncobj *syncobj)
{
	return drm_syncobj_fence_get(syncobj);
}

/* A function where debugfs is configured, an empty inline where it is not. */
void skua_debugfs_add_file(struct drm_device *dev, const char *name,
			   int (*show)(struct seq_file *m, void *unused), void *data)
{
	drm_debugfs_add_file(dev, name, show, data);
}

struct drm_device *skua_debugfs_dev(struct seq_file *m)
{
	struct drm_debugfs_entry *entry = m->private;

	return entry->dev;
}

void *skua_debugfs_data(struct seq_file *m)
{
	struct drm_debugfs_entry *entry = m->private;

	return entry->file.data;
}

/* The object with the handle @id or the next after it, which @id becomes, with a reference. */
static struct drm_gem_object *skua_file_next_object(struct drm_file *file, int *id)
{
	struct drm_gem_object *obj;

	spin_lock(&file->table_lock);
	obj = idr_get_next(&file->object_idr, id);
	if (obj)
		drm_gem_object_get(obj);
	spin_unlock(&file->table_lock);
	return obj;
}

void skua_file_visit_objects(struct drm_file *file, void *data, skua_visit_fn visit)
{
	struct drm_gem_object *obj;
	int id;

	for (id = 0; (obj = skua_file_next_object(file, &id)); id++) {
		visit(obj, drm_gem_object_is_shared_for_memory_stats(obj), data);
		drm_gem_object_put(obj);
		cond_resched();
	}
}

/* The process is the one that uses the file, not the one that opened it. */
void skua_drm_visit_clients(struct drm_device *dev, void *data, skua_client_fn visit)
{
	struct drm_file *file;

	mutex_lock(&dev->filelist_mutex);
	list_for_each_entry(file, &dev->filelist, lhead) {
		char name[TASK_COMM_LEN] = "?";
		struct task_struct *task;
		struct pid *pid;
		int number;

		rcu_read_lock();
		pid = rcu_dereference(file->pid);
		task = pid_task(pid, PIDTYPE_TGID);
		if (task)
			get_task_comm(name, task);
		number = pid_vnr(pid);
		rcu_read_unlock();
		visit(file, file->client_id, number, name, data);
	}
	mutex_unlock(&dev->filelist_mutex);
}

/*
 * drm_gem_object_funcs.mmap: page frame mappings that a fault fills. Called by
 * drm_gem_mmap_obj(), and by drm_gem_prime_mmap() for an exported buffer.
 */
int skua_gem_mmap(struct drm_gem_object *obj, struct vm_area_struct *vma)
{
	if (drm_gem_is_imported(obj)) {
		int ret;

		/* The exporter sets its own. */
		vma->vm_private_data = NULL;
		vma->vm_ops = NULL;

		/* dma_buf_mmap() takes the offset within the buffer. */
		ret = dma_buf_mmap(obj->import_attach->dmabuf, vma, 0);
		/* The vma has the exporter's reference now, not ours. */
		if (!ret)
			drm_gem_object_put(obj);
		return ret;
	}

	/* vmf_insert_pfn_prot() has a BUG_ON() for these. */
	if (vma_is_cow_mapping(vma))
		return -EINVAL;

	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_page_prot = vma_get_page_prot(vma);
	return 0;
}

void skua_gem_unmap(struct drm_gem_object *obj)
{
	drm_vma_node_unmap(&obj->vma_node, obj->dev->anon_inode->i_mapping);
}

/* Of whatever has these offsets of the node: @offset is one of drm_vma_node_offset_addr(). */
void skua_gem_unmap_at(struct drm_device *dev, long long offset, long long bytes)
{
	unmap_mapping_range(dev->anon_inode->i_mapping, offset, bytes, 1);
}

/* The inode at @place; none of an object that never had pages. */
struct inode *skua_inode_get(struct inode **place)
{
	/* Pairs with the cmpxchg() of skua_inode_at(): who sees the inode sees what is in it. */
	return smp_load_acquire(place);
}

/* What that has goes, if it is there. */
void skua_inode_discard(struct inode **place)
{
	struct inode *inode = skua_inode_get(place);

	if (inode)
		shmem_truncate_range(inode, 0, (loff_t)-1);
}

/* The inode for so many bytes that is at @place; made now if there is none. It stays there. */
struct inode *skua_inode_at(struct inode **place, unsigned long long size)
{
	struct inode *inode, *made;
	struct file *file;

	inode = skua_inode_get(place);
	if (inode)
		return inode;
	file = shmem_file_setup("drm mm object", size, mk_vma_flags(VMA_NORESERVE_BIT));
	if (IS_ERR(file))
		return ERR_CAST(file);
	/* It has the pages: name and file are of no use. */
	made = file_inode(file);
	ihold(made);
	fput(file);
	inode = cmpxchg(place, NULL, made);
	if (!inode)
		return made;
	iput(made);
	return inode;
}

/* Of all objects that have a handle. Which objects there are, only the clients' files know. */
unsigned long skua_gem_unmap_all(struct drm_device *dev)
{
	struct drm_gem_object *obj;
	struct drm_file *file;
	unsigned long count = 0;
	int id;

	mutex_lock(&dev->filelist_mutex);
	list_for_each_entry(file, &dev->filelist, lhead) {
		for (id = 0; (obj = skua_file_next_object(file, &id)); id++) {
			skua_gem_unmap(obj);
			drm_gem_object_put(obj);
			count++;
		}
	}
	mutex_unlock(&dev->filelist_mutex);
	return count;
}

/* How many pages the objects in @lru have: without the lock one that moves in it is missing. */
long skua_gem_lru_pages(struct drm_device *dev, const struct drm_gem_lru *lru)
{
	long pages;

	mutex_lock(&dev->gem_lru_mutex);
	pages = lru->count;
	mutex_unlock(&dev->gem_lru_mutex);
	return pages;
}

/*
 * The object in the list behind @last, or its first one if that is NULL, with a
 * reference; NULL if there is none, -ENOENT if @last is not in the list. If @back, the
 * one before @last, or the last one.
 */
struct drm_gem_object *skua_gem_lru_behind(struct drm_device *dev, struct drm_gem_lru *lru,
					   struct drm_gem_object *last, bool back)
{
	struct list_head *node = last ? &last->lru_node : &lru->list;
	struct drm_gem_object *obj, *found = NULL;

	mutex_lock(&dev->gem_lru_mutex);
	if (last && last->lru != lru) {
		found = ERR_PTR(-ENOENT);
	} else {
		while (!found && (node = back ? node->prev : node->next) != &lru->list) {
			obj = list_entry(node, typeof(*obj), lru_node);
			/* One that is being freed waits for the mutex. */
			if (kref_get_unless_zero(&obj->refcount))
				found = obj;
		}
	}
	mutex_unlock(&dev->gem_lru_mutex);
	return found;
}

/*
 * Lets go of mmap_lock in a fault of what maps @obj. The vma may go away with it, and with
 * that the references of object and module: these are kept until skua_fault_end().
 */
static struct file *skua_fault_unlock(struct vm_fault *vmf, struct drm_gem_object *obj)
{
	struct file *file = get_file(vmf->vma->vm_file);

	drm_gem_object_get(obj);
	mmap_read_unlock(vmf->vma->vm_mm);
	return file;
}

static void skua_fault_end(struct drm_gem_object *obj, struct file *file)
{
	drm_gem_object_put(obj);
	fput(file);
}

/*
 * Takes the reservation lock of @obj in a fault, inside of mmap_lock. So as not to
 * hold that up it is only tried at first; if that fails, wait for it without
 * mmap_lock and have the fault done again, which then waits with it.
 *
 * Return: 0 with the lock held, or the vm_fault_t to return without it.
 */
unsigned int skua_fault_reserve(struct vm_fault *vmf, struct drm_gem_object *obj)
{
	if (likely(dma_resv_trylock(obj->resv)))
		return 0;

	if (fault_flag_allow_retry_first(vmf->flags)) {
		if (!(vmf->flags & FAULT_FLAG_RETRY_NOWAIT)) {
			struct file *file = skua_fault_unlock(vmf, obj);

			if (!dma_resv_lock_interruptible(obj->resv, NULL))
				dma_resv_unlock(obj->resv);
			skua_fault_end(obj, file);
		}
		return (__force unsigned int)VM_FAULT_RETRY;
	}

	if (dma_resv_lock_interruptible(obj->resv, NULL))
		return (__force unsigned int)VM_FAULT_NOPAGE;
	return 0;
}

/*
 * Waits for the moves of @obj (its kernel fences) in a fault, by the same rules.
 * Not with the reservation locked, which the object may share with a whole address
 * space.
 * The reservation lock is held on entry, and on return only if that is 0.
 */
unsigned int skua_fault_wait_kernel(struct vm_fault *vmf, struct drm_gem_object *obj)
{
	/* For a moment: others' fences are pending for longer, perhaps, than its own. */
	const long moment = msecs_to_jiffies(10);
	long err;

	if (dma_resv_test_signaled(obj->resv, DMA_RESV_USAGE_KERNEL))
		return 0;

	if (fault_flag_allow_retry_first(vmf->flags)) {
		struct file *file;

		if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT) {
			dma_resv_unlock(obj->resv);
			return (__force unsigned int)VM_FAULT_RETRY;
		}
		file = skua_fault_unlock(vmf, obj);
		dma_resv_unlock(obj->resv);
		(void)dma_resv_wait_timeout(obj->resv, DMA_RESV_USAGE_KERNEL, true, moment);
		skua_fault_end(obj, file);
		return (__force unsigned int)VM_FAULT_RETRY;
	}

	dma_resv_unlock(obj->resv);
	err = dma_resv_wait_timeout(obj->resv, DMA_RESV_USAGE_KERNEL, true, moment);
	/* Done again: the object may have moved while the lock was free. */
	return (__force unsigned int)(err < 0 && err != -ERESTARTSYS ? VM_FAULT_SIGBUS :
								       VM_FAULT_NOPAGE);
}

/* A page of @inode, which is read or made. */
static struct folio *skua_inode_read(struct inode *inode, unsigned long index)
{
	unsigned int over = skua_memcg_set_aside();
	struct folio *folio = shmem_read_folio(inode->i_mapping, index);

	skua_memcg_put_back(over);
	return folio;
}

/*
 * Has the pages that @inode has of so many bytes be in memory at this moment; holds
 * none. What is thrown away meanwhile does not come again: reading makes pages where
 * there are none, so it is asked which are there, be it in the swap.
 */
void skua_inode_bring(struct inode *inode, unsigned long long size)
{
	unsigned long index = 0, last = (size >> PAGE_SHIFT) - 1;

	while (index <= last && !fatal_signal_pending(current) &&
	       xa_find(&inode->i_mapping->i_pages, &index, last, XA_PRESENT)) {
		struct folio *folio = skua_inode_read(inode, index);

		/* Who needs it asks again, and is told. */
		if (IS_ERR(folio))
			return;
		index = folio_next_index(folio);
		folio_put(folio);
	}
}

/*
 * The same for all of @obj, whose @inode is, in a fault, by the same rules. The
 * reservation lock is held on entry, and not on return.
 */
unsigned int skua_fault_bring(struct vm_fault *vmf, struct drm_gem_object *obj,
			      struct inode *inode)
{
	struct file *file;

	dma_resv_unlock(obj->resv);
	if (!fault_flag_allow_retry_first(vmf->flags)) {
		skua_inode_bring(inode, obj->size);
		return 0;
	}
	if (!(vmf->flags & FAULT_FLAG_RETRY_NOWAIT)) {
		file = skua_fault_unlock(vmf, obj);
		skua_inode_bring(inode, obj->size);
		skua_fault_end(obj, file);
	}
	return (__force unsigned int)VM_FAULT_RETRY;
}

/* The page of @obj, counted from its start, that @vmf is about. */
unsigned long skua_fault_page(struct vm_fault *vmf, struct drm_gem_object *obj)
{
	return linear_page_index(vmf->vma, vmf->address) - drm_vma_node_start(&obj->vma_node);
}

/* Pages of the mapping that follow the one @vmf is about. */
unsigned long skua_fault_pages_after(struct vm_fault *vmf)
{
	return (vmf->vma->vm_end - (vmf->address & PAGE_MASK)) / PAGE_SIZE - 1;
}

unsigned int skua_fault_insert(struct vm_fault *vmf, unsigned long ahead, unsigned long pfn,
			       bool wc, bool io, bool write)
{
	struct vm_area_struct *vma = vmf->vma;
	/* vm_page_prot is read-only where writes are to be noticed (pfn_mkwrite). */
	pgprot_t prot = vm_get_page_prot(write ? vma->vm_flags : vma->vm_flags & ~VM_SHARED);

	if (wc)
		prot = pgprot_writecombine(prot);
	/* Device memory is not encrypted. */
	if (io)
		prot = pgprot_decrypted(prot);

	return (__force unsigned int)vmf_insert_pfn_prot(vma,
							 (vmf->address & PAGE_MASK) +
							 ahead * PAGE_SIZE, pfn, prot);
}

/*
 * drm_gem_get_pages() and drm_gem_put_pages() use nothing of the object but its
 * size and its file, and nothing of that but its inode. Naming these, instead of
 * the object, lets the pages have an owner that does not depend on the object's
 * lifetime, and the object have no file.
 */
struct page **skua_pages_get(struct inode *inode, unsigned long long size)
{
	struct file file = { .f_inode = inode, .f_mapping = inode->i_mapping };
	struct drm_gem_object obj = { .filp = &file, .size = size };
	unsigned long index = 0, pages = size >> PAGE_SHIFT;
	struct page **array;

	/* As that does, and as its pages are to be from the start. */
	mapping_set_unevictable(inode->i_mapping);
	/* It charges what is not there all at once: nothing then, or what has just gone. */
	while (inode->i_mapping->nrpages < pages && index < pages &&
	       !fatal_signal_pending(current)) {
		struct folio *folio = skua_inode_read(inode, index);

		/* It says so, too. */
		if (IS_ERR(folio))
			break;
		index = folio_next_index(folio);
		folio_put(folio);
	}
	array = drm_gem_get_pages(&obj);
	/* It does so itself, but not where there is no memory for the array. */
	if (IS_ERR(array))
		mapping_clear_unevictable(inode->i_mapping);
	return array;
}

void skua_pages_put(struct inode *inode, unsigned long long size, struct page **pages, bool dirty)
{
	struct file file = { .f_inode = inode, .f_mapping = inode->i_mapping };
	struct drm_gem_object obj = { .filp = &file, .size = size };

	drm_gem_put_pages(&obj, pages, dirty, dirty);
}

/*
 * As drm_gem_shmem_get_pages() does for map_wc: on x86 all mappings of a page have
 * one type, that of the kernel's own, which this changes.
 */
int skua_pages_set_wc(struct page **pages, unsigned long count)
{
#ifdef CONFIG_X86
	return set_pages_array_wc(pages, count);
#else
	return 0;
#endif
}

void skua_pages_set_wb(struct page **pages, unsigned long count)
{
#ifdef CONFIG_X86
	WARN_ON(set_pages_array_wb(pages, count));
#endif
}

void *skua_page_address(struct page *page)
{
	return page_address(page);
}

_Bool skua_dma_mapping_error(struct device *dev, unsigned long long address)
{
	return dma_mapping_error(dev, address);
}

unsigned long skua_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

static int skua_dmem_reclaim(struct dmem_cgroup_pool_state *pool, u64 bytes, void *priv)
{
	struct skua_dmem_owner *owner = priv;

	return owner->reclaim(pool, bytes, owner->dev);
}

struct dmem_cgroup_region *skua_dmem_register(const char *name, unsigned long long size,
					      struct skua_dmem_owner *owner)
{
	static const struct dmem_cgroup_ops ops = {
		.reclaim = skua_dmem_reclaim,
	};
	const struct dmem_cgroup_init init = {
		.size = size,
		.ops = &ops,
		.reclaim_priv = owner,
	};

	return dmem_cgroup_register_region(&init, "%s", name);
}

void skua_dmem_unregister(struct dmem_cgroup_region *region)
{
	dmem_cgroup_unregister_region(region);
}

int skua_dmem_try_charge(struct dmem_cgroup_region *region, unsigned long long size,
			 struct dmem_cgroup_pool_state **pool,
			 struct dmem_cgroup_pool_state **limit)
{
	return dmem_cgroup_try_charge(region, size, pool, limit);
}

void skua_dmem_uncharge(struct dmem_cgroup_pool_state *pool, unsigned long long size)
{
	dmem_cgroup_uncharge(pool, size);
}

void skua_dmem_put(struct dmem_cgroup_pool_state *pool)
{
	dmem_cgroup_pool_state_put(pool);
}

bool skua_dmem_evict_valuable(struct dmem_cgroup_pool_state *limit,
			      struct dmem_cgroup_pool_state *pool, bool ignore_low,
			      bool *hit_low)
{
	return dmem_cgroup_state_evict_valuable(limit, pool, ignore_low, hit_low);
}

struct dmem_cgroup_pool_state *skua_dmem_common_ancestor(struct dmem_cgroup_pool_state *a,
							 struct dmem_cgroup_pool_state *b)
{
	return dmem_cgroup_get_common_ancestor(a, b);
}

/*
 * Who is beyond memory.high sleeps for that on the way to user mode. For much at once
 * try_charge_memcg() has it sleep in the charge as well, for seconds, whatever it holds:
 * between these two nothing was much yet. A worker never gets to user mode, and is not
 * to sleep for one client when it works for the next.
 */
unsigned int skua_memcg_set_aside(void)
{
	unsigned int over = 0;

#ifdef CONFIG_MEMCG
	swap(over, current->memcg_nr_pages_over_high);
#endif
	return over;
}

void skua_memcg_put_back(unsigned int over)
{
#ifdef CONFIG_MEMCG
	if (current->flags & PF_KTHREAD)
		current->memcg_nr_pages_over_high = 0;
	else
		current->memcg_nr_pages_over_high += over;
#endif
}

/* A worker that allocates much piece by piece, for a client, does not sleep for the next. */
void skua_memcg_spare_worker(void)
{
#ifdef CONFIG_MEMCG
	if (current->flags & PF_KTHREAD)
		current->memcg_nr_pages_over_high = 0;
#endif
}

struct mem_cgroup *skua_memcg_get(void)
{
	return get_mem_cgroup_from_mm(current->mm);
}

struct mem_cgroup *skua_memcg_set_active(struct mem_cgroup *group)
{
	return set_active_memcg(group);
}

void skua_memcg_put(struct mem_cgroup *group)
{
	mem_cgroup_put(group);
}

/* Of a device, by the groups of processes that pay for them. */
struct skua_copies {
	struct list_lru lru;
	struct kmem_cache *cache;
};

struct skua_copy {
	struct list_head link;
	unsigned long pages;
};

struct skua_copies *skua_copies_new(struct shrinker *shrinker)
{
	static atomic_t number;
	struct skua_copies *copies;
	char name[32];

	copies = kzalloc_obj(*copies);
	if (!copies)
		return NULL;
	/* Of a device that was unbound there may still be one. */
	snprintf(name, sizeof(name), "skua-copies-%d", atomic_inc_return(&number));
	copies->cache = kmem_cache_create(name, sizeof(struct skua_copy), 0, SLAB_ACCOUNT, NULL);
	if (!copies->cache)
		goto free;
	if (list_lru_init_memcg(&copies->lru, shrinker))
		goto destroy;
	return copies;
destroy:
	kmem_cache_destroy(copies->cache);
free:
	kfree(copies);
	return NULL;
}

void skua_copies_free(struct skua_copies *copies)
{
	list_lru_destroy(&copies->lru);
	kmem_cache_destroy(copies->cache);
	kfree(copies);
}

/*
 * An entry for a copy of so many pages, of which @page is the first. It is charged to the
 * group that the page is charged to: so it is in the list of that group, and goes to the
 * next one with the page when the group goes. Nobody is to be killed for it.
 */
struct skua_copy *skua_copy_new(struct skua_copies *copies, struct page *page,
				unsigned long pages)
{
	struct mem_cgroup *group, *old;
	struct skua_copy *copy;

	rcu_read_lock();
	group = folio_memcg(page_folio(page));
	if (!mem_cgroup_tryget(group))
		group = NULL;
	rcu_read_unlock();
	old = set_active_memcg(group);
	copy = kmem_cache_alloc_lru(copies->cache, &copies->lru,
				    GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN);
	set_active_memcg(old);
	mem_cgroup_put(group);
	if (!copy)
		return NULL;
	INIT_LIST_HEAD(&copy->link);
	copy->pages = pages;
	list_lru_add_obj(&copies->lru, &copy->link);
	return copy;
}

void skua_copy_free(struct skua_copies *copies, struct skua_copy *copy)
{
	list_lru_del_obj(&copies->lru, &copy->link);
	kmem_cache_free(copies->cache, copy);
}

static enum lru_status skua_copy_count(struct list_head *link, struct list_lru_one *list,
				       void *pages)
{
	*(unsigned long *)pages += container_of(link, struct skua_copy, link)->pages;
	return LRU_SKIP;
}

bool skua_page_is_paid_by(struct page *page, const struct mem_cgroup *group)
{
	guard(rcu)();
	return folio_memcg(page_folio(page)) == group;
}

static unsigned long skua_shrinker_count(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct skua_shrinker_owner *owner = shrinker->private_data;
	unsigned long some = ULONG_MAX;
	unsigned long pages = 0;

	if (mem_cgroup_shrink_is_root(sc))
		pages = owner->count(owner->dev);
	else
		list_lru_walk_one(&owner->copies->lru, sc->nid, sc->memcg, skua_copy_count,
				  &pages, &some);
	return pages ?: SHRINK_EMPTY;
}

static unsigned long skua_shrinker_scan(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct skua_shrinker_owner *owner = shrinker->private_data;
	unsigned long pages = sc->nr_to_scan;
	unsigned long freed;

	/* Who allocates may hold what removing mappings takes. */
	if (!(sc->gfp_mask & __GFP_FS))
		return SHRINK_STOP;
	freed = owner->scan(owner->dev, mem_cgroup_shrink_is_root(sc) ? NULL : sc->memcg, &pages);
	/* Objects go as a whole: what was more than asked for is not asked for again. */
	sc->nr_scanned = pages;
	return pages ? freed : SHRINK_STOP;
}

struct shrinker *skua_shrinker_new(const char *name, struct skua_shrinker_owner *owner)
{
	struct shrinker *shrinker = shrinker_alloc(SHRINKER_MEMCG_AWARE, "%s", name);

	if (!shrinker)
		return NULL;
	shrinker->count_objects = skua_shrinker_count;
	shrinker->scan_objects = skua_shrinker_scan;
	shrinker->private_data = owner;
	return shrinker;
}

void skua_shrinker_register(struct shrinker *shrinker)
{
	shrinker_register(shrinker);
}

void skua_shrinker_free(struct shrinker *shrinker)
{
	shrinker_free(shrinker);
}

/*
 * Calls @shrink, with the reservation locked, for objects of @from until these have
 * @pages pages, and sets that to how many they have; those of which it has freed some
 * go to @to. No reference is taken, which could become the last one: an object that
 * is freed leaves its list before anything else, and that waits for the mutex.
 */
unsigned long skua_gem_lru_shrink(struct drm_device *dev, struct drm_gem_lru *from,
				  struct drm_gem_lru *to, unsigned long *pages,
				  unsigned long (*shrink)(struct drm_gem_object *obj))
{
	struct drm_gem_object *obj;
	unsigned long freed = 0;
	unsigned long seen = 0;

	if (!mutex_trylock(&dev->gem_lru_mutex)) {
		*pages = 0;
		return 0;
	}
	*pages = min_t(unsigned long, *pages, from->count);
	while (seen < *pages &&
	       (obj = list_first_entry_or_null(&from->list, typeof(*obj), lru_node))) {
		unsigned long some = 0;

		if (kref_read(&obj->refcount) && dma_resv_trylock(obj->resv)) {
			some = shrink(obj);
			dma_resv_unlock(obj->resv);
		}
		drm_gem_lru_move_tail_locked(some ? to : from, obj);
		freed += some;
		seen += obj->size >> PAGE_SHIFT;
	}
	mutex_unlock(&dev->gem_lru_mutex);
	*pages = seen;
	return freed;
}

/*
 * Has objects of a list, which stays as it is, drop something that is @meant, until that
 * were as many pages. Unless the caller can @wait, not if somebody is at the lists.
 *
 * Return: how many pages it was.
 */
unsigned long skua_gem_lru_drop(struct drm_device *dev, struct drm_gem_lru *lru,
				unsigned long pages, bool wait, const void *meant,
				unsigned long (*drop)(struct drm_gem_object *obj,
						      const void *meant))
{
	struct drm_gem_object *obj;
	unsigned long dropped = 0;

	if (wait)
		mutex_lock(&dev->gem_lru_mutex);
	else if (!mutex_trylock(&dev->gem_lru_mutex))
		return 0;
	list_for_each_entry(obj, &lru->list, lru_node) {
		if (dropped >= pages)
			break;
		if (!kref_read(&obj->refcount) || !dma_resv_trylock(obj->resv))
			continue;
		dropped += drop(obj, meant);
		dma_resv_unlock(obj->resv);
	}
	mutex_unlock(&dev->gem_lru_mutex);
	return dropped;
}

void skua_init_delayed_work(struct delayed_work *work, void (*func)(struct work_struct *work))
{
	INIT_DELAYED_WORK(work, func);
}

int skua_reserve_wc(u64 start, u64 size)
{
	return arch_io_reserve_memtype_wc(start, size);
}

void skua_free_wc(u64 start, u64 size)
{
	arch_io_free_memtype_wc(start, size);
}

/*
 * On x86 all mappings of device memory have one type, that of the first one
 * which says so: the kernel's own.
 */
void *skua_reserve_cached(u64 start, u64 size)
{
	return memremap(start, size, MEMREMAP_WB | MEMREMAP_DEC);
}

void skua_free_cached(void *mapping)
{
	memunmap(mapping);
}

void skua_not_leak(const void *object)
{
	kmemleak_not_leak(object);
}

bool skua_is_kernel_thread(void)
{
	return current->flags & PF_KTHREAD;
}

void skua_wmb(void)
{
	/* Stores to memory that the device reads, before the doorbell that follows. */
	wmb();
}

/* Of a KUnit test's pages, whoever else writes them meanwhile. */
void skua_kunit_pages_copy(struct page **pages, unsigned long offset, char *bytes,
			   unsigned long count, bool write)
{
	for (; count--; offset++, bytes++) {
		struct page *page = pages[offset >> PAGE_SHIFT];

		if (write)
			memcpy_to_page(page, offset_in_page(offset), bytes, 1);
		else
			memcpy_from_page(bytes, page, offset_in_page(offset), 1);
	}
}

/* KUnit runs tests in kernel threads, whose own root is empty. */
struct file *skua_kunit_open(const char *path, int flags)
{
	scoped_with_init_fs()
		return filp_open(path, flags, 0);
}
