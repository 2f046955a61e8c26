package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/limit"
)

const (
	// keptArchives is how many archives are kept, those that were asked for last, and maxArchive the
	// largest one, in bytes.
	keptArchives, maxArchive = 16, 256 << 20
	// archiveTime bounds the making of one.
	archiveTime = 2 * time.Minute
	// archivesClient is to whom the disk of all archives is charged.
	archivesClient = "archives"
)

// ErrArchiveTooLarge is an archive of more than maxArchive bytes.
var ErrArchiveTooLarge = fmt.Errorf("the archive would be larger than %d MiB: clone the repository instead",
	maxArchive>>20)

// archiveOf names an archive. What is made of a commit is always the same.
type archiveOf struct{ commit, folder string }

// Archive is all files of a commit in one .tar.gz. It may be dropped while others read it: Read
// tells them.
type Archive struct {
	spool *Spool

	reading sync.RWMutex // held for writing to close the spool
	dropped bool
}

// Size is in bytes.
func (a *Archive) Size() int64 { return a.spool.Size() }

// Read gives the content to fn; read is false where the archive is dropped. It does not wait for
// that: a slow client may still read it for long.
func (a *Archive) Read(fn func(content io.Reader) error) (read bool, err error) {
	if !a.reading.TryRLock() {
		return false, nil
	}
	defer a.reading.RUnlock()
	if a.dropped {
		return false, nil
	}
	return true, fn(a.spool.Reader(0))
}

// drop gives the disk back once no client reads.
func (a *Archive) drop() {
	a.reading.Lock()
	defer a.reading.Unlock()
	a.dropped = true
	a.spool.Close()
}

// Commit is the id of the commit that a tag names; "" where there is no such tag, or it names no
// commit.
func (r *Repo) Commit(ctx context.Context, client, tag string) (string, error) {
	refs, err := r.BranchesAndTags()
	id := refs.ByName["refs/tags/"+tag]
	if err != nil || id == "" {
		return "", err
	}
	found, err := r.look(ctx, client, id+"^{commit}")
	if err != nil || found[0].kind != "commit" {
		return "", err
	}
	return found[0].id, nil
}

// Archive makes the archive of a commit, in which all files are in a folder. Those who ask for the
// same one wait for the first of them, to whom the work is charged and who may go meanwhile.
func (r *Repo) Archive(ctx context.Context, client, commit, folder string) (*Archive, error) {
	key := archiveOf{commit, folder}
	if kept, is := r.Store.archives.Get(key); is {
		return kept, nil
	}
	made := r.Store.archiving.DoChan(key.commit+"/"+key.folder, func() (any, error) {
		a, err := r.makeArchive(context.WithoutCancel(ctx), client, key)
		if err == nil {
			r.Store.archives.Add(key, a)
		}
		if errors.Is(err, limit.ErrShare) || errors.Is(err, limit.ErrFull) {
			r.Store.archives.Purge() // so that there is room when the client comes again
		}
		return a, err
	})
	select {
	case result := <-made:
		a, _ := result.Val.(*Archive)
		return a, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *Repo) makeArchive(ctx context.Context, client string, key archiveOf) (*Archive, error) {
	if !isID(key.commit) || strings.ContainsAny(key.folder, "/\x00") {
		return nil, errors.New("make an archive: there is no such commit or folder")
	}
	spool := r.Store.Spool(archivesClient, nil)
	command := r.browsing(client, "archive", "--format=tar.gz", "--prefix="+key.folder+"/", key.commit)
	bounded := &boundedSpool{to: spool}
	command.Stdout, command.Time = bounded, archiveTime
	if err := command.Run(ctx); err != nil {
		spool.Close()
		if bounded.failed != nil {
			err = bounded.failed // git only knows that its output was closed
		}
		return nil, fmt.Errorf("make an archive: %w", err)
	}
	return &Archive{spool: spool}, nil
}

// boundedSpool takes maxArchive bytes.
type boundedSpool struct {
	to     *Spool
	failed error
}

// Write fails where the archive becomes too large, or there is no room.
func (b *boundedSpool) Write(p []byte) (n int, err error) {
	if b.to.Size()+int64(len(p)) > maxArchive {
		b.failed = ErrArchiveTooLarge
		return 0, b.failed
	}
	n, b.failed = b.to.Write(p)
	return n, b.failed
}
