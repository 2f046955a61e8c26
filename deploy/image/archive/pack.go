package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// pack writes what is in a folder as a tar that says nothing of when, where and by whom it was
// made: in the order of names, owned by root, with the time 0. change, if it is there, changes the
// header of each.
func pack(w io.Writer, folder string, change func(*tar.Header)) error {
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		header, err := headerOf(path, filepath.ToSlash(name), entry)
		if err != nil {
			return err
		}
		if change != nil {
			change(header)
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			return nil
		}
		return copyFile(archive, path)
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// headerOf is the header of a file, a folder or a symbolic link. Nothing else belongs into an
// image.
func headerOf(path, name string, entry fs.DirEntry) (*tar.Header, error) {
	info, err := entry.Info()
	if err != nil {
		return nil, err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if info.Mode()&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case mode.Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		h.Linkname, err = os.Readlink(path)
	default:
		err = fmt.Errorf("%s is neither file nor folder nor symbolic link", name)
	}
	return h, err
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
