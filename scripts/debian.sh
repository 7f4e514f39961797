# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Fetching a Debian from its mirror. Sourced by the scripts that make entries of that.

# shellcheck source=scripts/cache.sh
. "$(dirname "${BASH_SOURCE[0]}")/cache.sh"

# The programs that the host must have, and the package of each.
prerequisites() {
	local need=() pair missing=()
	need=(mmdebstrap:mmdebstrap bwrap:bubblewrap newuidmap:uidmap flock:util-linux tar:tar)
	for pair in "${need[@]}"; do
		command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
	done
	if ((${#missing[@]})); then
		local install="apt-get install --no-install-recommends ${missing[*]}"
		((EUID == 0)) || die "missing: ${missing[*]}. As root: $install"
		step "installing ${missing[*]}" prerequisites \
			sh -c "apt-get update -q && DEBIAN_FRONTEND=noninteractive $install -q -y"
	fi
	unshare --user --map-root-user true 2>/dev/null ||
		die "no user namespaces. As root: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
	((EUID == 0)) || grep -qsE "^($(id -un)|$EUID):" /etc/subuid ||
		die "no subordinate ids. As root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un)"
}

# The mirror that the host itself uses.
mirror() {
	local uri
	if [[ -n ${SKUA_MIRROR:-} ]]; then
		echo "$SKUA_MIRROR"
		return
	fi
	# shellcheck disable=SC2016 # apt's variables
	uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
		awk '$2 !~ /-security$/ && $1 !~ /-security\/?$/ { print $1; exit }')
	# A list of mirrors in a file: its first.
	[[ $uri != mirror+file:* ]] || uri=$(grep -m1 -oE '^[a-z]+:[^[:space:]]+' "/${uri#mirror+file:/}")
	[[ -n $uri ]] || die "no Debian mirror in the host's apt configuration: name one in SKUA_MIRROR"
	echo "$uri"
}

# fetch NAME TEMP URI: unpacks a Debian with the packages of scripts/NAME.packages into TEMP.
fetch() {
	local name=$1 temp=$2 uri=$3 aptopts=() line
	# The host's proxies are apt's own affair: hand them on.
	while read -r line; do
		aptopts+=("--aptopt=$line")
	done < <(apt-config dump Acquire | grep -iE '^Acquire::https?::(.*::)?Proxy ' || true)
	# Through a pipe into files owned by whoever unpacks them, without device
	# nodes: nothing of it needs root afterwards. Not in /tmp, which may be memory.
	TMPDIR=/var/tmp mmdebstrap --mode=unshare --variant=apt --format=tar "${aptopts[@]}" \
		--include="$(grep -v '^#' "$top/scripts/$name.packages" | paste -sd,)" \
		--setup-hook="mkdir -p \"\$1/etc/apt/preferences.d\"
			printf '%s\n' '$(cat "$top/scripts/sysroot.pins")' >\"\$1/etc/apt/preferences.d/skua\"" \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--aptopt='APT::Install-Recommends "false"' \
		"$suite" - "deb $uri $suite main" "deb $uri $suite-updates main" "deb $uri $suite-backports main" |
		tar -x --no-same-owner --exclude='./dev/*' -C "$temp" -f -
	# Where scripts/sandbox lays the host's own.
	: >>"$temp/etc/resolv.conf"
	: >>"$temp/etc/hosts"
}
