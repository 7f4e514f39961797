// SPDX-License-Identifier: MIT
/*
 * A first program in C, on the uAPI header alone: fills VRAM with a pattern, copies it to where
 * the CPU sees it, and looks. Without libdrm; the same in Rust is tools/libskua/examples/first.rs.
 *
 *	PKG_CONFIG_PATH=include cc $(pkg-config --cflags skua-uapi) first_uapi.c
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <drm/skua_drm.h>

#define BYTES		(1u << 20)
#define PATTERN		0xcafef00du

/* GPU virtual addresses: the program chooses them. */
#define VRAM_VA		0x10000000ull
#define RESULT_VA	0x20000000ull
#define COMMANDS_VA	0x30000000ull

/* Two commands of section 7 of the hardware manual: opcode, flags, length in words. */
#define FILL		(0x01u << 24 | 6)
#define COPY		(0x02u << 24 | 8)

#define ARRAY(a)	{ sizeof((a)[0]), sizeof(a) / sizeof((a)[0]), (uintptr_t)(a) }

/* An ioctl of which this program knows no reason to fail. A signal may come first. */
#define call(fd, name, argument)					\
	do {								\
		if (retried(fd, DRM_IOCTL_##name, argument))		\
			err(1, #name);					\
	} while (0)

static int retried(int fd, unsigned long request, void *argument)
{
	int result;

	do
		result = ioctl(fd, request, argument);
	while (result && errno == EINTR);
	return result;
}

/* The render node of the first device that the driver skua has. */
static int open_first(void)
{
	for (int minor = 128; minor < 192; minor++) {
		char path[32], driver[8] = "";
		struct drm_version version = { .name = driver, .name_len = sizeof(driver) - 1 };
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/renderD%d", minor);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!retried(fd, DRM_IOCTL_VERSION, &version) && !strcmp(driver, "skua"))
			return fd;
		close(fd);
	}
	errx(1, "there is no Skua GPU");
}

/* The bit of the first memory region of a kind. */
static __u32 first_region(int fd, __u32 kind)
{
	struct drm_skua_region_info regions[8];
	struct drm_skua_query query = {
		.type = DRM_SKUA_QUERY_REGIONS,
		.size = sizeof(regions),
		.pointer = (uintptr_t)regions,
	};

	call(fd, SKUA_QUERY, &query);
	for (__u32 i = 0; i < query.size / sizeof(regions[0]); i++)
		if (regions[i].kind == kind)
			return 1u << regions[i].id;
	errx(1, "there is no memory of kind %u", kind);
}

/* The number of the first engine of a kind. */
static __u32 first_engine(int fd, __u32 kind)
{
	struct drm_skua_engine_info engines[16];
	struct drm_skua_query query = {
		.type = DRM_SKUA_QUERY_ENGINES,
		.size = sizeof(engines),
		.pointer = (uintptr_t)engines,
	};

	call(fd, SKUA_QUERY, &query);
	for (__u32 i = 0; i < query.size / sizeof(engines[0]); i++)
		if (engines[i].kind == kind)
			return engines[i].index;
	errx(1, "there is no engine of kind %u", kind);
}

/* A buffer object: memory. */
static __u32 create(int fd, __u64 size, __u32 placements, __u32 flags)
{
	struct drm_skua_bo_create bo = { .size = size, .placements = placements, .flags = flags };

	call(fd, SKUA_BO_CREATE, &bo);
	return bo.handle;
}

/* Where the CPU sees a buffer object. */
static void *map(int fd, __u32 handle, size_t size)
{
	struct drm_skua_bo_mmap_offset offset = { .handle = handle };
	void *memory;

	call(fd, SKUA_BO_MMAP_OFFSET, &offset);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset.offset);
	if (memory == MAP_FAILED)
		err(1, "mmap");
	return memory;
}

int main(void)
{
	int fd = open_first();
	__u32 system = first_region(fd, DRM_SKUA_REGION_SYSTEM);
	__u32 vram = create(fd, BYTES, first_region(fd, DRM_SKUA_REGION_VRAM), 0);
	__u32 result = create(fd, BYTES, system, DRM_SKUA_BO_CPU_ACCESS);
	__u32 commands = create(fd, 4096, system, DRM_SKUA_BO_CPU_ACCESS);
	const __u32 words[] = {
		FILL, PATTERN, VRAM_VA, 0, BYTES, 0,
		COPY, 0, VRAM_VA, 0, RESULT_VA, 0, BYTES, 0,
	};

	/* What has to be before what is said by syncobjs: no ioctl of the driver waits. */
	struct drm_syncobj_create mapped = { 0 }, done = { 0 };

	call(fd, SYNCOBJ_CREATE, &mapped);
	call(fd, SYNCOBJ_CREATE, &done);

	struct drm_skua_vm_create vm = { 0 };

	call(fd, SKUA_VM_CREATE, &vm);

	struct drm_skua_bind_op ops[] = {
		{ .handle = vram, .va = VRAM_VA, .size = BYTES },
		{ .handle = result, .va = RESULT_VA, .size = BYTES },
		{ .handle = commands, .va = COMMANDS_VA, .size = 4096,
		  .flags = DRM_SKUA_BIND_READONLY },
	};
	struct drm_skua_sync when_mapped[] = {
		{ .flags = DRM_SKUA_SYNC_SIGNAL, .handle = mapped.handle },
	};
	struct drm_skua_vm_bind bind = {
		.vm = vm.vm, .ops = ARRAY(ops), .syncs = ARRAY(when_mapped),
	};

	call(fd, SKUA_VM_BIND, &bind);

	memcpy(map(fd, commands, 4096), words, sizeof(words));

	struct drm_skua_context_create context = {
		.vm = vm.vm, .engine = first_engine(fd, DRM_SKUA_ENGINE_COPY),
	};

	call(fd, SKUA_CONTEXT_CREATE, &context);

	struct drm_skua_buffer buffers[] = { { .va = COMMANDS_VA, .size = sizeof(words) } };
	struct drm_skua_sync syncs[] = {
		{ .flags = DRM_SKUA_SYNC_WAIT, .handle = mapped.handle },
		{ .flags = DRM_SKUA_SYNC_SIGNAL, .handle = done.handle },
	};
	struct drm_skua_submit submit = {
		.context = context.context, .buffers = ARRAY(buffers), .syncs = ARRAY(syncs),
	};

	call(fd, SKUA_SUBMIT, &submit);

	struct drm_syncobj_wait wait = {
		.handles = (uintptr_t)&done.handle,
		.count_handles = 1,
		.timeout_nsec = INT64_MAX,
	};

	call(fd, SYNCOBJ_WAIT, &wait);

	/* It is over. Whether it went well is what the context says. */
	struct drm_skua_context_state state = { .context = context.context };

	call(fd, SKUA_CONTEXT_STATE, &state);
	if (state.status != DRM_SKUA_CONTEXT_ACTIVE)
		errx(1, "status %u, reason %u at %#llx", state.status, state.reason,
		     (unsigned long long)state.address);

	const __u32 *seen = map(fd, result, BYTES);

	for (size_t i = 0; i < BYTES / sizeof(*seen); i++)
		if (seen[i] != PATTERN)
			errx(1, "word %zu is %#x", i, seen[i]);
	printf("%#x\n", seen[0]);
	/* The end of the process closes the file, and that destroys everything. */
	return 0;
}
