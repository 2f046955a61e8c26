package repository

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// Notes are small files, one JSON value each.
const (
	// archiveFile marks a repository that is kept though its announcement does not list us (GRASP-05).
	archiveFile = "archive"
	// unprovenFile marks a repository of which no announcement was accepted since it was made.
	unprovenFile = "unproven"
	// endedFile says since when and why a repository is not hosted any more.
	endedFile = "ended"
	// waitingFile names the references below refs/nostr/ that were pushed before their events.
	waitingFile = "waiting"
	// followsFile names the state that branches and tags follow.
	followsFile = "follows"
	// belongsFile of the root says to which log and domain the repositories belong.
	belongsFile = ".belongs"
)

// note writes a note durably, or removes it.
func note(path string, value any, keep bool) (err error) {
	defer doing("note "+filepath.Base(path), &err)
	if !keep {
		if err := os.Remove(path); err != nil {
			return ignoreGone(err)
		}
		return syncPaths(filepath.Dir(path))
	}
	content, err := json.Marshal(value)
	if err == nil {
		err = writeDurably(path, string(content)+"\n")
	}
	return err
}

// note writes or removes a note of the repository, unless the lease has ended.
func (l *Leased) note(name string, value any, keep bool) error {
	if err := l.MayWrite(context.Background()); err != nil {
		return err
	}
	return note(l.in(name), value, keep)
}

// noted reads a note. Where there is none, or one that makes no sense, the value stays as it is.
func noted(path string, value any) error {
	content, err := os.ReadFile(path)
	if err == nil {
		_ = json.Unmarshal(content, value)
	}
	if err = ignoreGone(err); err != nil {
		return fmt.Errorf("read what is noted in %s: %w", filepath.Base(path), err)
	}
	return nil
}

// IsArchive reports whether the repository is marked as an archive.
func (r *Repo) IsArchive() bool {
	_, err := os.Lstat(r.in(archiveFile))
	return err == nil
}

// SetArchive marks the repository as an archive, durably, or takes the mark away.
func (l *Locked) SetArchive(is bool) error {
	if is == l.IsArchive() {
		return nil
	}
	return l.note(archiveFile, true, is)
}

// IsUnproven reports whether no announcement of the repository was accepted since it was made:
// no client was told that it is kept.
func (r *Repo) IsUnproven() bool {
	_, err := os.Lstat(r.in(unprovenFile))
	return err == nil
}

// SetProven notes durably that an announcement of the repository is accepted. Each repository is made
// unproven, so that no push can bring data before that is noted.
func (l *Locked) SetProven() error {
	if !l.IsUnproven() {
		return nil
	}
	return l.note(unprovenFile, nil, false)
}

// Rules say which repositories are here: those of the settings, and those that were archived by
// earlier settings. What was archived once is served as long as its announcement is, so that a
// changed list takes nothing away.
type Rules struct {
	config.Rules
	Store *Store
}

// Keeps reports whether the repository of an announcement is here.
func (r Rules) Keeps(a *nostr.Announcement, others authority.Announcements) bool {
	return r.Rules.Keeps(a, others) || r.wasArchived(a)
}

// Archives reports whether it is here though its announcement does not list this service.
func (r Rules) Archives(a *nostr.Announcement) bool {
	return r.Rules.Archives(a) || !r.Lists(a) && r.wasArchived(a)
}

func (r Rules) wasArchived(a *nostr.Announcement) bool {
	repo, err := r.Store.Repo(a.Ref)
	return err == nil && repo.IsArchive()
}

// Ended is what is noted of a repository that is not hosted any more.
type Ended struct {
	// Announcement is the id of the owner's last announcement: the one that was deleted, or that
	// does not list us. Another one would be another end. Empty: an operator has banned it.
	Announcement string    `json:"announcement"`
	Reason       string    `json:"reason"`
	Since        time.Time `json:"since"`
	// Kept: an operator has cancelled the removal.
	Kept bool `json:"kept,omitempty"`
}

// SetEnded notes durably that the hosting has ended, or, with nil, that it has not.
func (l *Locked) SetEnded(e *Ended) error { return l.note(endedFile, e, e != nil) }

// Ended returns what SetEnded has noted, nil if nothing is. A note that makes no sense counts as
// none: it is made again, and the repository is kept longer.
func (r *Repo) Ended() (*Ended, error) {
	var e Ended
	if err := noted(r.in(endedFile), &e); err != nil || e.Announcement != "" && !nostr.IsHex64(e.Announcement) ||
		e.Since.IsZero() {
		return nil, err
	}
	return &e, nil
}

// WaitingPush is a reference below refs/nostr/ that was pushed before its event.
type WaitingPush struct {
	Event  string `json:"event"`            // id
	Client string `json:"client,omitempty"` // key of the client that pushed it; empty: not known
}

// Waiting returns what is noted by SetWaiting.
func (r *Repo) Waiting() (all []WaitingPush, err error) { return all, noted(r.in(waitingFile), &all) }

// SetWaiting notes durably which references wait and who pushes them. One is noted before it is
// there.
func (l *Locked) SetWaiting(all []WaitingPush) error {
	return l.note(waitingFile, all, len(all) > 0)
}

// Followed is the state event that branches and tags of a repository follow.
type Followed struct {
	Event  string          `json:"event"` // id
	Author string          `json:"author"`
	At     nostr.Timestamp `json:"at"`
}

// SetFollowed notes durably which state is followed. When its author deletes it, and no worker is
// there, nothing else tells the next worker that these references must go.
func (l *Locked) SetFollowed(state Followed) error {
	noted, err := l.Followed()
	if err != nil || noted == state {
		return err
	}
	return l.note(followsFile, state, true)
}

// Followed returns what SetFollowed has noted; the zero value: nothing.
func (r *Repo) Followed() (state Followed, err error) {
	err = noted(r.in(followsFile), &state)
	if !nostr.IsHex64(state.Event) || !nostr.IsHex64(state.Author) {
		return Followed{}, err
	}
	return state, err
}

// Belongs is what is noted in a folder of repositories.
type Belongs struct {
	// Log is the time at which the log was made; empty: it does not outlive the process.
	Log string `json:"log,omitempty"`
	// Domains are those under which the repositories were served since Since, the present one last:
	// a service may move to another domain, and its owners' announcements still list the old one.
	// Of the time before nothing is known.
	Domains []string  `json:"domains"`
	Since   time.Time `json:"since"`
	// Private: a private service served them (GRASP-08).
	Private bool `json:"private,omitempty"`
}

// TakeFolder returns what is noted in a folder, which is made if need be. One that belongs to
// another log, or was served under another domain, is an error that names the old and the new one;
// given says which log or domain the operator gives up, so that the folder belongs to this system
// from now on. Nothing else in the folder is read or changed.
func TakeFolder(root, log, domain string, given []string) (b Belongs, err error) {
	path := filepath.Join(root, belongsFile)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return b, cannotWrite(root, err)
	}
	if err := noted(path, &b); err != nil {
		return b, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: read to which system its repositories belong: %w", root, err)
	}
	if b.Since.IsZero() || len(b.Domains) == 0 {
		if _, err := os.Lstat(path); err == nil {
			return b, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: its file %s is damaged, and does not say to which system the repositories belong: nothing was changed; "+
				"want that file from a backup", root, belongsFile)
		}
		b = Belongs{Log: log, Domains: []string{domain}, Since: time.Now().UTC()}
		return b, noteFolder(root, b)
	}
	last := b.Domains[len(b.Domains)-1]
	switch {
	case log != "" && b.Log != "" && b.Log != log && !slices.Contains(given, b.Log):
		return b, fmt.Errorf("NGIT_GIT_DATA_PATH is %q: its repositories belong to the log of %s, and this system has the log of %s: nothing was changed; "+
			"want the git folder of this system, or, to give up the old log, NGIT_FORGET_LOG=%s", root, b.Log, log, b.Log)
	case last != domain && !slices.Contains(given, last):
		return b, fmt.Errorf("NGIT_DOMAIN is %q, and the repositories in NGIT_GIT_DATA_PATH (%s) were served as %s: nothing was changed; "+
			"want NGIT_DOMAIN=%s, or, if the service has moved to the new domain, NGIT_FORGET_LOG=%s", domain, root, last, last, last)
	case last == domain && (log == "" || b.Log == log):
		return b, nil
	}
	b.Log = cmp.Or(log, b.Log)
	b.Domains = append(slices.DeleteFunc(b.Domains, func(d string) bool { return d == domain }), domain)
	return b, noteFolder(root, b)
}

// TakePrivacy notes in a folder that its repositories are private, if they are now. One that was
// private is an error for a public service, unless the operator has made public what was private.
func TakePrivacy(root string, b Belongs, private, madePublic bool) (Belongs, error) {
	switch {
	case b.Private == private:
		return b, nil
	case !private && !madePublic:
		return b, config.WasPrivate("in NGIT_GIT_DATA_PATH (" + root + ")")
	}
	b.Private = private
	return b, noteFolder(root, b)
}

// noteFolder notes in a folder to which system it belongs.
func noteFolder(root string, b Belongs) error {
	if err := note(filepath.Join(root, belongsFile), b, true); err != nil {
		return cannotWrite(root, err)
	}
	return nil
}

// cannotWrite says that the git folder cannot be written to. Which file of ours could not be made
// says nothing to an operator.
func cannotWrite(root string, err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Errorf("NGIT_GIT_DATA_PATH is %q: want a folder that this user may write to (%w)", root, err)
}
