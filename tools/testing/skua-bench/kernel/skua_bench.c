// SPDX-License-Identifier: GPL-2.0
/*
 * Replays a trace of requests with the kernel's allocator of GPU memory.
 *
 * Written to debugfs skua_bench/gpu_buddy: 64-bit words: bytes of memory; 1 if every request is to
 * be met with one block; then the steps: the bytes of a request, or the complement of the number of
 * a request whose memory is given back. Read: how many requests failed though so much was free, how
 * many blocks the others got, and the bytes of the largest free block and of all of them at the
 * end.
 */

#include <linux/debugfs.h>
#include <linux/gpu_buddy.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/uaccess.h>

/* Words of a trace, at most. */
#define WORDS SZ_64K

static struct {
	/* Of this, and against a write during another. */
	struct mutex lock;
	u64 failed;
	u64 blocks;
	u64 largest;
	u64 free;
} result = {
	.lock = __MUTEX_INITIALIZER(result.lock),
};

static int step(struct gpu_buddy *mm, struct list_head *held, size_t *count, s64 word,
		unsigned long flags)
{
	struct list_head *list = &held[*count];
	int err;

	if (word < 0) {
		if (~word >= *count)
			return -EINVAL;
		gpu_buddy_free_list(mm, &held[~word], 0);
		return 0;
	}
	INIT_LIST_HEAD(list);
	*count += 1;
	err = gpu_buddy_alloc_blocks(mm, 0, mm->size, word, SZ_4K, list, flags);
	if (err == -ENOSPC) {
		result.failed += mm->avail >= word;
		return 0;
	}
	result.blocks += list_count_nodes(list);
	return err;
}

static u64 largest(struct gpu_buddy *mm)
{
	int order;

	for (order = mm->max_order; order >= 0; order--)
		if (mm->free_scoreboard[order])
			return mm->chunk_size << order;
	return 0;
}

static int replay(const s64 *words, size_t length)
{
	unsigned long flags = words[1] ? GPU_BUDDY_CONTIGUOUS_ALLOCATION : 0;
	struct list_head *held;
	struct gpu_buddy mm;
	size_t count = 0, at;
	int err;

	held = kvcalloc(length, sizeof(*held), GFP_KERNEL);
	if (!held)
		return -ENOMEM;
	err = gpu_buddy_init(&mm, words[0], SZ_4K);
	if (err)
		goto free;
	result.failed = 0;
	result.blocks = 0;
	for (at = 2; at < length && !err; at++)
		err = step(&mm, held, &count, words[at], flags);
	result.largest = largest(&mm);
	result.free = mm.avail;
	while (count)
		gpu_buddy_free_list(&mm, &held[--count], 0);
	gpu_buddy_fini(&mm);
free:
	kvfree(held);
	return err;
}

static ssize_t trace_write(struct file *file, const char __user *data, size_t size, loff_t *pos)
{
	size_t length = size / sizeof(s64);
	s64 *words;
	int err;

	if (*pos || size % sizeof(s64) || length < 2 || length > WORDS)
		return -EINVAL;
	words = vmemdup_user(data, size);
	if (IS_ERR(words))
		return PTR_ERR(words);
	mutex_lock(&result.lock);
	err = replay(words, length);
	mutex_unlock(&result.lock);
	kvfree(words);
	return err ?: size;
}

static int trace_show(struct seq_file *out, void *data)
{
	mutex_lock(&result.lock);
	seq_printf(out, "failed %llu blocks %llu largest %llu free %llu\n", result.failed,
		   result.blocks, result.largest, result.free);
	mutex_unlock(&result.lock);
	return 0;
}

static int trace_open(struct inode *inode, struct file *file)
{
	return single_open(file, trace_show, NULL);
}

static const struct file_operations trace_fops = {
	.owner = THIS_MODULE,
	.open = trace_open,
	.read = seq_read,
	.write = trace_write,
	.release = single_release,
};

static struct dentry *dir;

static int __init bench_init(void)
{
	dir = debugfs_create_dir("skua_bench", NULL);
	debugfs_create_file("gpu_buddy", 0600, dir, NULL, &trace_fops);
	return 0;
}
module_init(bench_init);

static void __exit bench_exit(void)
{
	debugfs_remove(dir);
}
module_exit(bench_exit);

MODULE_DESCRIPTION("Replays traces with the kernel's allocator of GPU memory");
MODULE_LICENSE("GPL");
