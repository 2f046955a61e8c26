package eventdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Difference is an entry in which two indexes differ.
type Difference struct {
	Table string // in words: "events", "by author"
	// Key is the entry's key in its table, hex.
	Key string
	// Missing: only the other index has the entry. Extra: only this one has it. Neither: both have
	// it and it says something else.
	Missing, Extra bool
}

// tables are those that follow from the log, in words.
var tables = map[byte]string{
	tableEvent: "events", tableID: "by id", tableAuthor: "by author", tableKind: "by kind", tableTag: "by tag",
	tableHolder: "holders of coordinates", tableDeletedID: "deletions by id", tableDeletedTo: "deletions by coordinate", tableExpiry: "expirations",
}

// Compare looks for entries in which the index differs from another, which was made of the same log
// and under the same rules and stands at the same sequence. differs is told of each, in order of
// their keys, until it returns false. What has expired is passed over: indexes sweep it out when
// they come to it. The error is one of reading: files may be damaged.
func (db *DB) Compare(ctx context.Context, other *DB, differs func(Difference) bool) (err error) {
	ours, err := db.pebble.NewIterWithContext(ctx, nil)
	if err != nil {
		return fmt.Errorf("compare indexes: %w", err)
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	theirs, err := other.pebble.NewIterWithContext(ctx, nil)
	if err != nil {
		return fmt.Errorf("compare indexes: %w", err)
	}
	defer func() { err = errors.Join(err, theirs.Close()) }()
	for a, b := ours.First(), theirs.First(); a || b; {
		if err := errors.Join(ctx.Err(), ours.Error(), theirs.Error()); err != nil {
			return fmt.Errorf("compare indexes: %w", err)
		}
		order := 0 // of our entry and theirs
		switch {
		case !b:
			order = -1
		case !a:
			order = 1
		default:
			order = bytes.Compare(ours.Key(), theirs.Key())
		}
		at := ours
		if order > 0 {
			at = theirs
		}
		same, err := db.isSame(at, theirs, order)
		if err != nil {
			return fmt.Errorf("compare indexes: %w", err)
		}
		if !same {
			table, key := at.Key()[0], at.Key()[1:]
			if !differs(Difference{Table: tables[table], Key: fmt.Sprintf("%x", key), Missing: order > 0, Extra: order < 0}) {
				return nil
			}
		}
		if order <= 0 {
			a = ours.Next()
		}
		if order >= 0 {
			b = theirs.Next()
		}
	}
	return errors.Join(ours.Error(), theirs.Error())
}

// isSame reports whether two entries say the same, or nothing that follows from the log. order is
// not 0 if only one index has the entry, at which at stands.
func (db *DB) isSame(at, theirs *pebble.Iterator, order int) (bool, error) {
	table, now := at.Key()[0], db.now()
	if _, counts := tables[table]; !counts {
		return true, nil
	}
	value, err := at.ValueAndErr()
	if err != nil {
		return false, err
	}
	if order == 0 {
		other, err := theirs.ValueAndErr()
		if err != nil || bytes.Equal(value, other) {
			return true, err
		}
		if table == tableHolder {
			// One may have swept out what the other still has.
			a, badOurs := parseHolder(value)
			b, badTheirs := parseHolder(other)
			return badOurs == nil && badTheirs == nil && a.compare(b) == 0, nil
		}
	}
	switch table {
	case tableID:
		a, err := parseAt(value)
		return err == nil && a.expired(now), nil
	case tableEvent, tableAuthor, tableKind, tableTag:
		p, _, err := parsePosting(value)
		return err == nil && p.expired(now), nil
	case tableExpiry:
		key := at.Key()
		return len(key) > timeLen && binary.BigEndian.Uint64(key[1:]) < uint64(now), nil
	}
	return false, nil
}

// ErrInUse: a process has the folder of an index open.
var ErrInUse = errors.New("the index is in use")

// Lock keeps every other process from opening the index in a folder, until unlock is called. The
// folder is made if it is not there. [ErrInUse]: one has it open.
func Lock(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if errors.Is(err, syscall.EAGAIN) || err != nil && strings.Contains(err.Error(), "lock held by current process") {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	return lock.Close, nil
}
