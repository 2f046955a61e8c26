// Package repository is git on disk: bare repositories, one for each owner and identifier, that a
// real git works on in a clean environment. It keeps two promises that everything above relies on:
//
//   - what references of a repository name is there with all that it links to: a pack is checked in
//     quarantine before any of it becomes visible, and objects are walked through to their end
//     before a reference that we set names them;
//   - no name that a stranger chose leaves the root folder or reaches a command line as an option.
//
// Repositories of one maintainer group share what they have in common ([Repo.Share]); no others do.
//
// Repositories are of git's SHA-1 object format; an object id of 64 digits is never there.
package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Options say where repositories lie and which git works on them.
type Options struct {
	// Root is the folder of all repositories (NGIT_GIT_DATA_PATH). It is made if it is not there.
	Root string

	// Git is the git program, a name or a path (NGIT_GIT_BINARY). Default "git".
	Git string

	// Processes is how many git processes may run at once; more wait (NGIT_GIT_PROCESSES). Default
	// 32.
	Processes int

	// Memory is how many bytes of memory one git process may have (NGIT_GIT_PROCESS_MEMORY).
	// Default 4 GiB. It is enforced on Linux only.
	Memory int64

	// PackTime is how long git may take to check and store one pack (NGIT_GIT_PACK_TIME). Default
	// 30 min.
	PackTime time.Duration

	// Lease returns the context under which an identifier's repositories may be written: when it ends,
	// git processes that write are killed, and nothing is moved or removed. nil: they always may.
	Lease func(identifier string) context.Context

	// LookOnly is for those who only look: nothing is made in the root, and nothing swept up.
	LookOnly bool

	// Log gets what went wrong where nobody waits for an answer. Default: nothing.
	Log *slog.Logger
}

const (
	defaultProcesses = 32

	// Folders of the root that are no repositories. An npub never starts with a dot.
	newFolder   = ".new"
	trashFolder = ".trash"
	emptyFolder = ".empty"

	suffix = ".git"
)

// Store is all repositories below one root. It is safe for use by many goroutines.
type Store struct {
	root      string
	git       string
	memory    int64 // of one git process
	processes processes
	volume    *volume
	log       *slog.Logger
	branch    string // that HEAD of a new repository follows, by its full name

	packTime time.Duration
	lease    func(identifier string) context.Context
}

// NewStore opens the root, checks that git runs and is not too old, and sweeps up what processes
// left behind that were killed. Its errors name the setting that has to change.
func NewStore(o Options) (*Store, error) {
	if o.Git == "" {
		o.Git = "git"
	}
	if o.Processes == 0 {
		o.Processes = defaultProcesses
	}
	if o.Memory == 0 {
		o.Memory = defaultMemory
	}
	if o.PackTime == 0 {
		o.PackTime = 30 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	git, err := exec.LookPath(o.Git)
	if err != nil {
		return nil, fmt.Errorf("NGIT_GIT_BINARY is %q: want a git program that can be run (%w)", o.Git, err)
	}
	if git, err = filepath.Abs(git); err != nil {
		return nil, fmt.Errorf("find git: %w", err)
	}
	branch, err := checkGit(git)
	if err != nil {
		return nil, fmt.Errorf("NGIT_GIT_BINARY is %q: %w", o.Git, err)
	}
	root, err := openRoot(o.Root, o.LookOnly)
	if err != nil {
		return nil, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: want a folder that can be written to (%w)", o.Root, err)
	}
	s := &Store{
		root: root, git: git, branch: branch, memory: o.Memory, processes: newProcesses(o.Processes), log: o.Log,
		packTime: o.PackTime, lease: o.Lease,
	}
	s.volume = &volume{try: s.probe, log: o.Log}
	if !o.LookOnly {
		s.sweepRoot()
	}
	return s, nil
}

// openRoot makes the root and proves that it can be written to, unless that is only to be looked
// at.
func openRoot(given string, lookOnly bool) (string, error) {
	if given == "" {
		return "", errors.New("it is empty")
	}
	root, err := filepath.Abs(given)
	if err != nil {
		return "", err
	}
	if lookOnly {
		_, err := os.ReadDir(root)
		return root, err
	}
	for _, folder := range []string{newFolder, trashFolder} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return "", err
		}
	}
	probe, err := os.MkdirTemp(filepath.Join(root, newFolder), "probe-")
	if err != nil {
		return "", err
	}
	return root, os.Remove(probe)
}

// Repo is one repository, which may or may not be on disk yet.
type Repo struct {
	store *Store
	ref   nostr.RepoRef
	path  string
	prs   bool // it is a contributor's (Place)
}

// Repo names a repository: <root>/<npub>/<encoded identifier>.git. It does no I/O; the error is
// that of an illegal reference.
func (s *Store) Repo(ref nostr.RepoRef) (*Repo, error) { return s.At(Place{RepoRef: ref}) }

// At names the repository at a place. It does no I/O; the error is that of an illegal reference.
func (s *Store) At(place Place) (*Repo, error) {
	ref := place.RepoRef
	if !nostr.IsHex64(ref.PubKey) {
		return nil, errors.New("name a repository: the owner is not a public key of 64 lower-case hex digits")
	}
	if err := nostr.CheckIdentifier(ref.Identifier); err != nil {
		return nil, fmt.Errorf("name a repository: %w", err)
	}
	npub, err := encodeOwner(ref.PubKey)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.folder(place.PRs), npub, nostr.EncodeIdentifier(ref.Identifier)+suffix)
	return &Repo{store: s, ref: ref, path: path, prs: place.PRs}, nil
}

// decodeFolder returns the identifier for which a folder is named.
func decodeFolder(folder fs.DirEntry) (identifier string, ok bool) {
	encoded, ok := strings.CutSuffix(folder.Name(), suffix)
	if !ok || !folder.IsDir() {
		return "", false
	}
	identifier, err := nostr.DecodeIdentifier(encoded)
	return identifier, err == nil && nostr.CheckIdentifier(identifier) == nil
}

func encodeOwner(pubkey string) (npub string, err error) {
	if npub, err = nip19.EncodePublicKey(pubkey); err != nil {
		return "", fmt.Errorf("name a repository: %w", err)
	}
	return npub, nil
}

func decodeOwner(name string) (key string, ok bool) {
	if !strings.HasPrefix(name, "npub1") {
		return "", false
	}
	prefix, value, err := nip19.Decode(name)
	if err != nil || prefix != "npub" {
		return "", false
	}
	key, ok = value.(string)
	return key, ok
}

// Store is where the repository lies.
func (r *Repo) Store() *Store { return r.store }

// Ref says whose repository it is, and which.
func (r *Repo) Ref() nostr.RepoRef { return r.ref }

// Git is the git program that works on the repositories.
func (s *Store) Git() string { return s.git }

// Path is the folder of the bare repository.
func (r *Repo) Path() string { return r.path }

// ErrLease is a write that was not done, or was cut off, because another worker may write there
// now.
var ErrLease = errors.New("the lease of the repository has ended")

// underLease returns a context for writing to the repository, which ends with the lease too. cancel
// must be called when the write is done.
func (r *Repo) underLease(ctx context.Context) (leased context.Context, cancel func()) {
	if r.store.lease == nil || r.ref.Identifier == "" { // the empty one belongs to no shard
		return ctx, func() {}
	}
	leased, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.store.lease(r.ref.Identifier), func() { end(ErrLease) })
	return leased, func() {
		stop()
		end(nil)
	}
}

// mayWrite is asked before files are moved or removed.
func (r *Repo) mayWrite(ctx context.Context) error {
	if r.store.lease != nil && r.ref.Identifier != "" && r.store.lease(r.ref.Identifier).Err() != nil {
		return ErrLease
	}
	return context.Cause(ctx)
}

// in returns a path within the repository.
func (r *Repo) in(elements ...string) string {
	return filepath.Join(append([]string{r.path}, elements...)...)
}
