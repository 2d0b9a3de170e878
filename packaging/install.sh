#!/bin/sh
# Installs the program sandboxctl from a release:
#
#   sh install.sh [--version VERSION] [--to DIRECTORY] [--from PLACE] [--sha256 DIGEST]
#
#   --version   the release                                [default: the one that this script belongs to]
#   --to        where the program goes                     [default: /usr/local/bin for root, else ~/.local/bin]
#   --from      an https address, or an absolute directory, with the files of the release
#   --sha256    the digest of the archive, in place of the release's own list SHA256SUMS
#
# It checks the archive and the program before it replaces another one. It calls no sudo, and edits no file of a shell.
# To remove sandboxctl, delete the program. scripts/package fills in the words between @.
set -eu

fail() {
	echo "error: $1" >&2
	[ $# -lt 2 ] || echo "hint: $2" >&2
	exit 1
}

have() {
	command -v "$1" >/dev/null 2>&1
}

# Whether a version, such as 2.36, is another or newer.
at_least() {
	[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# Copies a file of the release into the work directory.
bring() {
	case $from in
	/*) cp "$from/$1" "$work/$1" || fail "$from has no $1" ;;
	*)
		have curl || fail "curl is missing" "install it, or download the files and name their directory: --from DIRECTORY"
		curl --proto '=https' --proto-redir '=https' --tlsv1.2 --fail --silent --show-error --location \
			--output "$work/$1" "$from/$1" || fail "$from/$1 cannot be downloaded"
		;;
	esac
}

main() {
	version=@VERSION@ glibc=@GLIBC@ releases=@RELEASES@ repository=@REPOSITORY@
	case $glibc in @*) fail "this is the template of install.sh" "run the one that scripts/package makes" ;; esac
	to='' from='' sha256=''
	while [ $# -gt 0 ]; do
		[ $# -ge 2 ] || fail "$1 needs a value, or is not known" "--version, --to, --from, --sha256"
		case $1 in
		--version) version=$2 ;;
		--to) to=$2 ;;
		--from) from=$2 ;;
		--sha256) sha256=$2 ;;
		*) fail "$1 is not known" "--version, --to, --from, --sha256" ;;
		esac
		shift 2
	done

	[ "$(uname -s)" = Linux ] || fail "sandboxctl runs on Linux; this is $(uname -s)"
	machine=$(uname -m)
	case $machine in
	x86_64 | aarch64) ;;
	*) fail "there is no package for $machine" "build it from source" ;;
	esac
	# A system without glibc, such as Alpine, has no answer.
	libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=
	case $libc in
	"glibc "*)
		at_least "${libc#glibc }" "$glibc" || fail "sandboxctl needs glibc $glibc or newer; this is $libc" "use the container image"
		;;
	*) fail "sandboxctl needs glibc $glibc or newer, and this system has another C library" "use the container image" ;;
	esac
	for program in tar xz sha256sum; do
		have "$program" || fail "$program is missing" "install it"
	done

	case $from in
	'')
		[ -n "$releases" ] || fail "this script knows no address of releases" '--from "$PWD" installs the files of this directory'
		from=$releases/v$version
		;;
	https://* | /*) ;;
	*) fail "--from: an https address, or an absolute directory" ;;
	esac
	if [ -z "$to" ]; then
		to=${HOME:?}/.local/bin
		[ "$(id -u)" -ne 0 ] || to=/usr/local/bin
	fi

	mkdir -p "$to"
	# Beside its place, so that it gets there by a rename.
	work=$(mktemp -d "$to/.sandboxctl-XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	archive=sandboxctl-$version-$machine-unknown-linux-gnu
	bring "$archive.tar.xz"
	if [ -z "$sha256" ]; then
		bring SHA256SUMS
		sha256=$(awk -v name="$archive.tar.xz" '$2 == name { print $1 }' "$work/SHA256SUMS")
		[ -n "$sha256" ] || fail "SHA256SUMS does not have $archive.tar.xz"
	fi
	found=$(sha256sum <"$work/$archive.tar.xz")
	[ "${found%% *}" = "$sha256" ] ||
		fail "$archive.tar.xz has the digest ${found%% *}, not $sha256" "it is damaged, or not the release: download it again"
	# What its forge says of who built it, for users of the forge's program.
	if [ "$from" = "$releases/v$version" ] && have gh && gh auth status >/dev/null 2>&1; then
		gh attestation verify "$work/$archive.tar.xz" --repo "$repository" || fail "$archive.tar.xz has no valid attestation"
	fi

	tar -xJOf "$work/$archive.tar.xz" "$archive/sandboxctl" >"$work/sandboxctl"
	chmod 755 "$work/sandboxctl"
	said=$("$work/sandboxctl" --version) || fail "the new program does not start; nothing was replaced"
	case $said in
	"sandboxctl $version "*) ;;
	*) fail "the archive has $said, not $version; nothing was replaced" ;;
	esac
	mv -fT "$work/sandboxctl" "$to/sandboxctl"
	echo "installed sandboxctl $version as $to/sandboxctl"
	case :$PATH: in
	*:"$to":*) ;;
	*) echo "note: $to is not in PATH" ;;
	esac
	"$to/sandboxctl" doctor || echo "note: sandboxctl is installed; doctor says what its sandboxes need"
}

main "$@"
