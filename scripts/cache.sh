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

# entry PATH MAKE [ARG…]: makes the entry at PATH by `MAKE TEMP ARG…` unless it is there.
entry() {
	local path=$1 make=$2 lock temp
	shift 2
	[[ -d $path ]] && return
	mkdir -p "$cache"
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
	"$@" >"$file" 2>&1 </dev/null &
	pid=$!
	# shellcheck disable=SC2064 # this step's pid, now
	trap "kill $pid 2>/dev/null; exit 130" INT TERM
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
	trap - INT TERM
	[[ ! -t 2 ]] || printf '\r\033[K' >&2
	if ((rc)); then
		tail -n 40 "$file" >&2
		die "$what: failed ($rc), the whole log is ${file#"$PWD"/}"
	fi
	took=$((SECONDS - begin))
	((took < 2)) || printf '%5ds  %s\n' "$took" "$what" >&2
}
