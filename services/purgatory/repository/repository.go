// Package repository is git on disk: bare repositories, one for each owner and identifier, that a
// real git works on in a clean environment. It keeps two promises that everything above relies on:
//
//   - what references of a repository name is there with all that it links to: a pack is checked in
//     quarantine before any of it becomes visible, and objects are walked through to their end
//     before a reference that we set names them;
//   - no name that a stranger chose leaves the root folder or reaches a command line as an option.
//
// Repositories of one maintainer group share what they have in common ([Locked.Share]); no others
// do.
//
// It knows no events: what references must be, and who may push, is for its callers to say.
//
// Repositories are of git's SHA-1 object format; an object id of 64 digits is never there.
package repository

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Options say where repositories lie and which git works on them.
type Options struct {
	// Root is the folder of all repositories (NGIT_GIT_DATA_PATH). It is made if it is not there.
	Root string

	// Git is the git program, a name or a path. Default "git".
	Git string

	// Processes is how many git processes may run at once; more wait (NGIT_GIT_PROCESSES). Default
	// 32.
	Processes int

	// Memory is how many bytes of memory one git process may have at most.
	// Default 4 GiB. It is enforced on Linux only.
	Memory int64

	// MemoryBudget is how many bytes all git work may have: processes, and what requests keep. Default
	// half of what this process may have.
	MemoryBudget int64

	// SpoolBytes is how much requests on their way in, answers on their way out and packs that are
	// fetched may take on disk. Default 16 GiB. One client may have SpoolShare
	// of it, default a quarter.
	SpoolBytes, SpoolShare int64

	// PackTime is how long git may take to check and store one pack. Default 30 min.
	PackTime time.Duration

	// ChangesTime is how long git may look for the last changes of the entries of a folder. What it has
	// not found by then is not told. Default 1 s.
	ChangesTime time.Duration

	// Enter is asked before an identifier's repositories are written to. Its error, ErrElsewhere, says
	// that another process writes there. Default: this process may always write.
	Enter func(identifier string) (Tenure, error)

	// LookOnly is for those who only look: nothing is made in the root, and nothing swept up.
	LookOnly bool

	// Log gets what went wrong where nothing waits for an answer. Default: nothing.
	Log *slog.Logger
}

// Store is all repositories below one root. It is safe for use by many goroutines.
type Store struct {
	Options
	version string // of git
	branch  string // that HEAD of a new repository follows, by its full name

	probes   singleflight.Group // of the last look whether the root can be written to:
	probed   time.Time
	writable error

	usage        *usage
	own, clients pool
	requests     *limit.Fair // bytes in memory of clients' requests
	spools       *limit.Fair // bytes on disk of spools

	// What visitors of pages ask for again and again.
	folders   *lru.Cache[folderOf, *folder]
	logs      *lru.Cache[logOf, []proto.RepoCommit]
	archives  *lru.Cache[archiveOf, *Archive]
	archiving singleflight.Group

	locking sync.Mutex
	locks   map[Place]*lock // of repositories that are locked or waited for
}

// Usage tells of the git processes: how many run and wait, and what they take.
func (s *Store) Usage() prometheus.Collector { return s.usage }

// GitVersion is the version of the git program, as in 2.43.0.
func (s *Store) GitVersion() string { return s.version }

// NewStore opens the root, checks that git runs and is not too old, and sweeps up what processes
// left behind that were killed. Its errors name the setting that has to change.
func NewStore(o Options) (*Store, error) {
	o.Git = cmp.Or(o.Git, "git")
	o.Processes = cmp.Or(o.Processes, 32)
	o.Memory = cmp.Or(o.Memory, 4<<30)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MemoryBudget = cmp.Or(o.MemoryBudget, limit.Memory()/2)
	o.SpoolBytes = cmp.Or(o.SpoolBytes, 16<<30)
	o.SpoolShare = cmp.Or(o.SpoolShare, o.SpoolBytes/4)
	o.PackTime = cmp.Or(o.PackTime, 30*time.Minute)
	o.ChangesTime = cmp.Or(o.ChangesTime, time.Second)
	folders, err := lru.New[folderOf, *folder](keptFolders)
	logs, failed := lru.New[logOf, []proto.RepoCommit](keptLogs)
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("make room for what pages show: %w", err)
	}
	archives, err := lru.NewWithEvict(keptArchives, func(_ archiveOf, a *Archive) { go a.drop() })
	if err != nil {
		return nil, fmt.Errorf("make room for archives: %w", err)
	}
	s := &Store{Options: o, folders: folders, logs: logs, archives: archives, usage: newUsage()}
	s.divide()
	git, err := exec.LookPath(o.Git)
	if err == nil {
		s.Git, err = filepath.Abs(git)
	}
	if err == nil {
		s.version, s.branch, err = checkGit(s.Git)
	}
	if err != nil {
		return nil, fmt.Errorf("the program %s cannot be used: %w; install git 2.37 or newer, and see to it that PATH has its folder", o.Git, err)
	}
	if err := s.open(); err != nil {
		return nil, cannotWrite(o.Root, err)
	}
	return s, nil
}

// open makes the folders of the root, unless they are only to be looked at.
func (s *Store) open() (err error) {
	if s.Root == "" {
		return errors.New("it is empty")
	}
	if s.Root, err = filepath.Abs(s.Root); err != nil {
		return err
	}
	if s.LookOnly {
		_, err := os.ReadDir(s.Root)
		return err
	}
	for _, folder := range []string{newFolder, trashFolder} {
		if err := os.MkdirAll(filepath.Join(s.Root, folder), 0o755); err != nil {
			return err
		}
	}
	s.sweep()
	err = s.writeProbe()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		s.Log.Error("the disk of the git folder is full; what lies there is served", "folder", s.Root)
		return nil
	}
	return err
}

// Repo is one repository, which may or may not be on disk yet.
type Repo struct {
	Place
	Store *Store
	Path  string // the folder of the bare repository
}

// Repo names a repository: <root>/<npub>/<encoded identifier>.git. It does no I/O; the error is
// that of an illegal reference.
func (s *Store) Repo(ref nostr.RepoRef) (*Repo, error) { return s.At(Place{RepoRef: ref}) }

// At names the repository at a place. It does no I/O; the error is that of an illegal reference.
func (s *Store) At(place Place) (*Repo, error) {
	if !nostr.IsHex64(place.PubKey) {
		return nil, errors.New("name a repository: the owner is not a public key of 64 lower-case hex digits")
	}
	npub, err := nip19.EncodePublicKey(place.PubKey)
	if err == nil {
		err = nostr.CheckIdentifier(place.Identifier)
	}
	if err != nil {
		return nil, fmt.Errorf("name a repository: %w", err)
	}
	path := filepath.Join(s.folder(place.PRs), npub, nostr.EncodeIdentifier(place.Identifier)+suffix)
	return &Repo{place, s, path}, nil
}

// in returns a path within the repository.
func (r *Repo) in(elements ...string) string {
	return filepath.Join(append([]string{r.Path}, elements...)...)
}
