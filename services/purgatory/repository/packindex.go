package repository

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
)

const (
	packsFolder = "pack" // below objects/
	packPrefix  = "pack-"
	indexSuffix = ".idx"

	idBytes     = idLength / 2
	indexHeader = 8 + 256*4 // the magic number, the version and the fan-out table
)

// packIndex is the list of the objects of one pack, read from its index (gitformat-pack, version
// 2).
type packIndex struct {
	data []byte // the whole file, mapped into memory
	ids  []byte // the object ids in it, sorted, 20 bytes each
}

// openIndex maps the index of a pack. close must be called.
func openIndex(path string) (*packIndex, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the index of a pack: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the index of a pack: %w", err)
	}
	if info.Size() < indexHeader {
		return nil, fmt.Errorf("read the index of a pack: %s is too short", filepath.Base(path))
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("read the index of a pack: %w", err)
	}
	x := &packIndex{data: data}
	count := int(binary.BigEndian.Uint32(data[indexHeader-4:]))
	if !bytes.HasPrefix(data, []byte("\xfftOc\x00\x00\x00\x02")) || count > (len(data)-indexHeader)/(idBytes+4) {
		x.close()
		return nil, fmt.Errorf("read the index of a pack: %s is not of version 2", filepath.Base(path))
	}
	x.ids = data[indexHeader : indexHeader+count*idBytes]
	return x, nil
}

func (x *packIndex) close() { _ = syscall.Munmap(x.data) }

// count returns the number of objects in the pack.
func (x *packIndex) count() int { return len(x.ids) / idBytes }

// at returns the id of one object as 20 bytes.
func (x *packIndex) at(i int) []byte { return x.ids[i*idBytes : (i+1)*idBytes] }

// offset returns where one object begins in the pack. It is -1 if the index does not say.
func (x *packIndex) offset(i int) int64 {
	table := x.data[indexHeader+x.count()*(idBytes+4):] // behind the ids and a checksum of each object
	if len(table) < 4*x.count() {
		return -1
	}
	at := binary.BigEndian.Uint32(table[4*i:])
	if at>>31 == 0 {
		return int64(at)
	}
	large := table[4*x.count():] // of packs beyond 2 GiB
	if i = int(at &^ (1 << 31)); i >= len(large)/8 {
		return -1
	}
	return int64(binary.BigEndian.Uint64(large[8*i:]))
}

// has reports whether an object, given as 20 bytes, is in the pack.
func (x *packIndex) has(id []byte) bool {
	first := 0
	if id[0] > 0 {
		first = int(binary.BigEndian.Uint32(x.data[8+4*(int(id[0])-1):]))
	}
	end := int(binary.BigEndian.Uint32(x.data[8+4*int(id[0]):]))
	if first > end || end > x.count() {
		return false
	}
	at := first + sort.Search(end-first, func(i int) bool { return bytes.Compare(x.at(first+i), id) >= 0 })
	return at < end && bytes.Equal(x.at(at), id)
}

// packIndexes are the indexes of all packs of one folder.
type packIndexes []*packIndex

// openIndexes maps the indexes of all packs that a repository or pool has of its own. close must be
// called.
func (r *Repo) openIndexes() (packIndexes, error) {
	const tries = 10
	for try := 1; ; try++ {
		all, err := r.tryOpenIndexes()
		if err == nil || try == tries || !errors.Is(err, fs.ErrNotExist) {
			return all, err
		}
		// A pack has gone since we looked: another has taken its place.
	}
}

func (r *Repo) tryOpenIndexes() (packIndexes, error) {
	return openIndexesIn(r.in("objects", packsFolder))
}

// hasAny reports whether any of the objects is in a pack of a folder.
func hasAny(folder string, ids []string) (bool, error) {
	packs, err := openIndexesIn(folder)
	if err != nil {
		return false, err
	}
	defer packs.close()
	return slices.ContainsFunc(ids, packs.hasHex), nil
}

// openIndexesIn maps the indexes of all packs of a folder. close must be called.
func openIndexesIn(folder string) (packIndexes, error) {
	names, err := indexesIn(folder)
	if err != nil {
		return nil, err
	}
	var all packIndexes
	for _, name := range names {
		x, err := openIndex(filepath.Join(folder, name+indexSuffix))
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

func (x packIndexes) close() {
	for _, one := range x {
		one.close()
	}
}

// count returns the number of objects; one that is in several packs counts several times.
func (x packIndexes) count() (n int) {
	for _, one := range x {
		n += one.count()
	}
	return n
}

func (x packIndexes) has(id []byte) bool {
	return slices.ContainsFunc(x, func(one *packIndex) bool { return one.has(id) })
}

// hasHex is has for an id in hex digits.
func (x packIndexes) hasHex(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == idBytes && x.has(raw)
}

// ownPacks returns the names, without suffix, of the packs in the repository's own folder that have
// an index.
func (r *Repo) ownPacks() ([]string, error) { return indexesIn(r.in("objects", packsFolder)) }

// indexesIn returns the names, without suffix, of the packs in a folder that have an index.
func indexesIn(folder string) ([]string, error) {
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for packs: %w", err)
	}
	var names []string
	for _, file := range files {
		name, is := strings.CutSuffix(file.Name(), indexSuffix)
		if is && strings.HasPrefix(name, packPrefix) {
			names = append(names, name)
		}
	}
	return names, nil
}

// removePack removes a pack from the repository's own folder, its index first: what has no index is
// no pack to git, so that readers never meet half of one.
func (r *Repo) removePack(name string) error {
	folder := r.in("objects", packsFolder)
	if err := removeFile(filepath.Join(folder, name+indexSuffix)); err != nil {
		return err
	}
	if err := r.store.before("remove the rest of a pack"); err != nil {
		return err
	}
	for _, suffix := range []string{".rev", ".bitmap", ".mtimes", ".keep", ".pack"} {
		if err := removeFile(filepath.Join(folder, name+suffix)); err != nil {
			return err
		}
	}
	return nil
}

// looseObjects returns the ids of the objects that lie in files of their own in the repository's
// own folder.
func (r *Repo) looseObjects() ([]string, error) {
	folders, err := os.ReadDir(r.in("objects"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for objects: %w", err)
	}
	var ids []string
	for _, folder := range folders {
		if len(folder.Name()) != 2 {
			continue
		}
		files, err := os.ReadDir(r.in("objects", folder.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for objects: %w", err)
		}
		for _, file := range files {
			if id := folder.Name() + file.Name(); isID(id) {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// hasLoose reports whether an object lies in a file of its own.
func (r *Repo) hasLoose(id string) bool {
	if !isID(id) {
		return false
	}
	_, err := os.Lstat(r.in("objects", id[:2], id[2:]))
	return err == nil
}

// removeLoose removes one object that lies in a file of its own.
func (r *Repo) removeLoose(id string) error { return removeFile(r.in("objects", id[:2], id[2:])) }
