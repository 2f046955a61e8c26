package repository

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
)

// packIndex is the index of a pack (gitformat-pack, version 2). Behind the fan-out table are the names
// of all objects in order, then their sums, then where each lies in the pack, then the places that are
// far.
type packIndex struct {
	from    io.ReaderAt
	objects int
}

const (
	// fanOut is where the fan-out table of an index begins, and namesAt where it ends.
	fanOut  = 8
	namesAt = fanOut + 256*4
)

func readIndex(from io.ReaderAt) (x packIndex, err error) {
	x.from = from
	x.objects, err = x.countUpTo(255)
	return x, err
}

// read reads some bytes. Nothing follows an index that ends too soon.
func (x packIndex) read(size int, at int64) ([]byte, error) {
	read := make([]byte, size)
	if _, err := x.from.ReadAt(read, at); err != nil {
		return nil, fmt.Errorf("read the index of a pack: %w", err)
	}
	return read, nil
}

// countUpTo is how many objects have names that begin with this byte or one before it.
func (x packIndex) countUpTo(first int) (int, error) {
	if first < 0 {
		return 0, nil
	}
	count, err := x.read(4, fanOut+4*int64(first))
	if err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint32(count)), nil
}

// find is which object has this id, in the order of names.
func (x packIndex) find(id string) (n int, has bool, err error) {
	name, err := hex.DecodeString(id)
	if err != nil || len(name) != 20 {
		return 0, false, err
	}
	low, err := x.countUpTo(int(name[0]) - 1)
	if err != nil {
		return 0, false, err
	}
	high, err := x.countUpTo(int(name[0]))
	if err != nil {
		return 0, false, err
	}
	n, has = sort.Find(high-low, func(n int) int {
		other, failed := x.read(20, namesAt+20*int64(low+n))
		if failed != nil {
			err = failed
		}
		return bytes.Compare(name, other)
	})
	return low + n, has && err == nil, err
}

// place is where in the pack an object lies.
func (x packIndex) place(n int) (int64, error) {
	near, err := x.read(4, namesAt+24*int64(x.objects)+4*int64(n))
	if err != nil {
		return 0, err
	}
	place := int64(binary.BigEndian.Uint32(near))
	if far := place - 1<<31; far >= 0 {
		read, err := x.read(8, namesAt+28*int64(x.objects)+8*far)
		if err != nil {
			return 0, err
		}
		place = int64(binary.BigEndian.Uint64(read))
	}
	return place, nil
}

// endOfSent is where in a pack that git has completed the objects begin that were not sent: git puts
// them behind the others. How many were sent the pack says in its header. How many bytes came says
// nothing, because git passes over what follows a pack.
func (x packIndex) endOfSent(pack io.Reader) (int64, error) {
	header := make([]byte, 12)
	if _, err := io.ReadFull(pack, header); err != nil {
		return 0, fmt.Errorf("read the header of a pack: %w", err)
	}
	sent := int(binary.BigEndian.Uint32(header[8:]))
	if sent >= x.objects {
		return math.MaxInt64, nil
	}
	places := make([]int64, x.objects)
	for n := range places {
		var err error
		if places[n], err = x.place(n); err != nil {
			return 0, err
		}
	}
	slices.Sort(places)
	return places[sent], nil
}

// countObjects reads from the index of a pack how many objects there are.
func countObjects(index string) (objects int, err error) {
	defer doing("count the objects of a pack", &err)
	f, err := os.Open(index)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	x, err := readIndex(f)
	return x.objects, err
}
