package image_test

import (
	"bytes"
	"crypto/rand"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is what is built into the images here. It needs nothing but Go's own packages, which are
// compiled again for an image.
const program = "deploy/image/testdata/program.go"

// inside runs git in a root file system as the only one that it sees, in the repository /tmp/r.git.
func inside(t *testing.T, root, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/usr/bin/git", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() != 0 {
		one := func(id int) []syscall.SysProcIDMap {
			return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		}
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = one(os.Getuid()), one(os.Getgid())
	}
	cmd.Dir = "/tmp"
	cmd.Env = []string{
		"PATH=/usr/local/bin:/usr/bin", "HOME=/nonexistent", "GIT_DIR=/tmp/r.git",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a",
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, messages.String())
	}
	return strings.TrimSpace(out.String())
}

// devices makes plain files in the place of the devices that every container has and git opens: it
// reads nothing from the one, and what it names temporary files for from the other.
func devices(t *testing.T, root string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"null": "", "urandom": rand.Text()} {
		if err := os.WriteFile(filepath.Join(root, "dev", name), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func rootfs(t *testing.T, args ...string) (root, at string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	cmd := exec.CommandContext(t.Context(), "./rootfs", append([]string{root}, args...)...)
	cmd.Env = append(os.Environ(), "GOWORK=") // the repository's, although this module is outside
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("rootfs: %v\n%s", err, messages.String())
	}
	return root, strings.TrimSpace(string(out))
}

// TestGitInside runs the git commands that Tendril needs where nothing is but the image's files.
func TestGitInside(t *testing.T) {
	t.Parallel()
	root, at := rootfs(t, program, "git")
	if at != "/usr/bin/program" {
		t.Errorf("the program is %s", at)
	}
	devices(t, root)
	git := func(stdin string, args ...string) string { t.Helper(); return inside(t, root, stdin, args...) }
	git("", "init", "--quiet", "--bare", "--template=")
	blob := git("hello", "hash-object", "-w", "--stdin")
	tree := git("100644 blob "+blob+"\thello\n", "mktree")
	commit := git("", "commit-tree", tree, "-m", "first")
	git("create refs/heads/main\x00"+commit+"\x00", "update-ref", "--stdin", "-z")
	git("", "symbolic-ref", "HEAD", "refs/heads/main")
	pack := git("refs/heads/main\n", "pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q")
	git(pack, "index-pack", "--stdin", "--fix-thin", "--strict", "--threads=2")
	for _, args := range [][]string{
		{"repack", "--geometric=2", "-d", "-l", "-q", "-n"},
		{"rev-list", "--objects", "--all"},
		{"for-each-ref"},
		{"fsck", "--strict"},
		{"gc", "--quiet"},
		{"upload-pack", "--stateless-rpc", "--advertise-refs", "/tmp/r.git"},
		{"receive-pack", "--stateless-rpc", "--advertise-refs", "/tmp/r.git"},
	} {
		git("", args...)
	}
	if got, want := git(commit, "cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype)"), commit+" commit"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// A push starts further processes of git, by name.
	push := "0000000000000000000000000000000000000000 " + commit + " refs/heads/next\x00report-status"
	git(pktLine(push)+"0000"+pack, "receive-pack", "--stateless-rpc", "/tmp/r.git")
	if got := git("", "rev-parse", "refs/heads/next"); got != commit {
		t.Errorf("pushed: %s, want %s", got, commit)
	}
}

func pktLine(s string) string {
	const digits = "0123456789abcdef"
	n := len(s) + 4
	return string([]byte{'0', digits[n>>8&15], digits[n>>4&15], digits[n&15]}) + s
}

// TestRootHoldsNothingElse: no shell, nothing that may be written but two folders, no time.
func TestRootHoldsNothingElse(t *testing.T) {
	t.Parallel()
	root, _ := rootfs(t, program)
	writable := map[string]bool{"tmp": true, "var/lib/tendril": true}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if link := info.Mode().Type() == fs.ModeSymlink; !link && (info.Mode()&0o022 != 0) != writable[name] {
			t.Errorf("%s: %v", name, info.Mode())
		}
		if !info.ModTime().Equal(time.Unix(0, 0)) {
			t.Errorf("%s is of %v", name, info.ModTime())
		}
		if strings.HasPrefix(name, "usr/bin/") && name != "usr/bin/program" {
			t.Errorf("%s is there", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := exec.CommandContext(t.Context(), "./rootfs", root, program).Run(); err == nil {
		t.Error("it writes into a folder that is there already")
	}
}
