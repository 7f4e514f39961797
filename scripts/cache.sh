# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# The cache: entries named by the content that they are made from. An entry is
# made in a directory beside it under a lock and renamed when it is complete, so
# whoever finds an entry may use it. Sourced by the other scripts.

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=${SKUA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/skua}
[[ $cache == /* ]] || cache=$PWD/$cache
log=$top/out/log
suite=trixie
# Part of every key: raise it when a recipe changes in a way its inputs do not show.
recipe=1

die() {
	printf 'skua: %s\n' "$*" >&2
	exit 1
}

# key FILE…: the name of what is made from these files (comments do not count).
key() {
	{ echo "$recipe $suite"; grep -hv '^ *#' "$@"; } | sha256sum | cut -c1-16
}

sysroot_key() { key "$top/scripts/sysroot.packages" "$top/scripts/sysroot.pins"; }
sysroot() { echo "$cache/sysroot-$(sysroot_key)"; }
browser_key() { key "$top/scripts/browser.packages" "$top/scripts/sysroot.pins"; }
browser() { echo "$cache/browser-$(browser_key)"; }
linux() { echo "$cache/linux-$(sysroot_key)"; }

# The configuration of a kernel: `debug` is the plain one and more.
fragments() {
	echo "$top/kernel/configs/skua.config"
	[[ $1 == release ]] || echo "$top/kernel/configs/$1.config"
}

# kernel NAME: the O= tree of kernel `release` or `debug`.
kernel() {
	local files
	mapfile -t files < <(fragments "$1")
	echo "$cache/kernel-$1-$({ sysroot_key; key "${files[@]}"; } | sha256sum | cut -c1-16)"
}

# What the parts of a set-up take: MiB on disk, and minutes on two processors.
declare -A room=([sysroot]=2600 [browser]=700 [linux]=1900
	[kernel-release]=1200 [kernel-debug]=2200)
declare -A minutes=([sysroot]=2 [browser]=1 [linux]=1 [kernel-release]=10 [kernel-debug]=16)
declare -A words=([sysroot]='fetch the tools' [browser]='fetch a browser'
	[linux]='unpack the kernel source' [kernel-release]='build the release kernel'
	[kernel-debug]='build the debug kernel')

# announce PATH…: says once, before any of these entries is made, what will be done, where,
# and about how long it takes. A cache that cannot take it is refused here.
announce() {
	local path kind parts=() mib=0 time=0 free
	for path; do
		[[ -d $path ]] && continue
		kind=${path##*/}
		kind=${kind%-*}
		parts+=("${words[$kind]}")
		((mib += room[$kind], time += minutes[$kind])) || true
	done
	if ((${#parts[@]} == 0)) || [[ -n ${SKUA_ANNOUNCED:-} ]]; then
		return
	fi
	export SKUA_ANNOUNCED=1
	usable
	free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
	((free >= mib)) || die "the cache $cache lacks room: $free MiB are free, $mib MiB are needed" \
		'(make prune, or another place in SKUA_CACHE)'
	time=$((time * 2 / $(nproc) < 1 ? 1 : time * 2 / $(nproc)))
	printf 'skua: set-up, once: %s\n' "$(printf ', %s' "${parts[@]}" | cut -c3-)" >&2
	printf 'skua: about %d minutes and %d.%d GB in %s\n' \
		"$time" $((mib / 1000)) $((mib % 1000 / 100)) "$cache" >&2
}

# usable: the cache is a directory that can be written to.
usable() {
	local probe
	if mkdir -p "$cache" 2>/dev/null && probe=$(mktemp -d "$cache/.probe.XXXXXX" 2>/dev/null); then
		rmdir "$probe"
	else
		unusable
	fi
}

unusable() { die "the cache $cache cannot be written to: name another place in SKUA_CACHE"; }

# register: notes in the cache which entries this checkout needs, for `make prune`.
register() {
	local record text
	record=$cache/.checkouts/$(sha256sum <<<"$top" | cut -c1-16)
	text=$(printf '%s\n' "$top" "$(sysroot)" "$(linux)" "$(browser)" \
		"$(kernel release)" "$(kernel debug)")
	[[ $text != "$(cat "$record" 2>/dev/null)" ]] || return 0
	usable
	mkdir -p "${record%/*}"
	printf '%s\n' "$text" >"$record"
}

# use PATH…: holds a shared lock on entries for as long as this process and what it turns
# into runs, so that nobody removes them meanwhile.
use() {
	local path lock
	for path; do
		# One that is being made is locked by its maker.
		[[ -d $path && $path == "$cache"/* && $path != *.tmp.* ]] || continue
		{ exec {lock}>>"$cache/.lock-${path##*/}"; } 2>/dev/null || unusable
		flock -s "$lock"
	done
}

# entry PATH MAKE [ARG…]: makes the entry at PATH by `MAKE TEMP ARG…` unless it is there.
entry() {
	local path=$1 make=$2 lock temp
	shift 2
	[[ -d $path ]] && return
	usable
	exec {lock}>"$cache/.lock-${path##*/}"
	flock -n "$lock" || {
		echo "skua: waiting for another set-up that makes ${path##*/}"
		flock "$lock"
	}
	if [[ ! -d $path ]]; then
		# Left by a set-up that was killed: the lock says that nobody is at work on it.
		rm -rf "$path".tmp.*
		temp=$(mktemp -d "$path.tmp.XXXXXX")
		chmod 755 "$temp"
		"$make" "$temp" "$@"
		mv -T "$temp" "$path"
	fi
	exec {lock}>&-
}

# step WHAT LOG COMMAND…: runs COMMAND with its output in out/log/LOG.log and its
# progress on the terminal: seconds and last line, or a line each half minute.
step() {
	local what=$1 file=$log/$2.log begin=$SECONDS last=-1 rc=0 pid took
	shift 2
	mkdir -p "$log"
	# In a process group of its own: a pipe's programs end with it.
	set -m
	"$@" >"$file" 2>&1 </dev/null &
	pid=$!
	set +m
	# shellcheck disable=SC2064 # this step's pid, now
	trap "kill -- -$pid 2>/dev/null; exit 130" INT TERM HUP
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		took=$((SECONDS - begin))
		if [[ -t 2 ]]; then
			((took == last)) || printf '\r\033[K%5ds  %s  %.50s' "$took" "$what" \
				"$(tail -c 300 "$file" | tr -d '\r' | tr -c '[:print:]\n' ' ' | tail -n 1)" >&2
		elif ((took / 30 > last / 30)); then
			((took == 0)) || printf '%5ds  %s …\n' "$took" "$what" >&2
		fi
		last=$took
	done
	wait "$pid" || rc=$?
	trap - INT TERM HUP
	[[ ! -t 2 ]] || printf '\r\033[K' >&2
	if ((rc)); then
		! grep -qi 'no space left on device' "$file" ||
			die "$what: no room is left in $cache or $top (make prune, or another place in SKUA_CACHE)"
		tail -n 40 "$file" >&2
		die "$what: failed ($rc), the whole log is ${file#"$PWD"/}"
	fi
	took=$((SECONDS - begin))
	((took < 2)) || printf '%5ds  %s\n' "$took" "$what" >&2
}
