//! The image of a server's disk: a file in the server's folder, or an image of a Ceph cluster.

use test_support::ceph::Cluster;

use crate::process::Folder;
use crate::server::IMAGE;

#[derive(Clone, Copy)]
pub enum Image<'a> {
    /// A file, which each server opens through another backend.
    File,
    /// `rbd/NAME`.
    Rbd { cluster: &'a Cluster, name: &'a str },
}

impl<'a> Image<'a> {
    /// A new image of a cluster.
    pub fn rbd(cluster: &'a Cluster, name: &'a str, bytes: u64) -> Self {
        cluster.create_image(name, bytes);
        Self::on(cluster, name)
    }

    /// An image of a cluster.
    pub fn on(cluster: &'a Cluster, name: &'a str) -> Self {
        Image::Rbd { cluster, name }
    }

    /// Options of nodes called `d` on this image, to be used by one server after the other.
    pub fn nodes(self) -> Vec<String> {
        match self {
            Image::File => ["io_uring", "native", "threads"]
                .map(|aio| format!("--blockdev file,node-name=d,filename={IMAGE},aio={aio}"))
                .into(),
            Image::Rbd { cluster, name } => {
                let conf = cluster.conf();
                let conf = conf.display();
                let node = format!("--blockdev rbd,node-name=d,pool=rbd,image={name},conf={conf}");
                vec![node]
            }
        }
    }

    /// All bytes, read without a server.
    pub fn content(self, folder: &Folder) -> Vec<u8> {
        match self {
            Image::File => std::fs::read(folder.join(IMAGE)).unwrap(),
            Image::Rbd { cluster, name } => {
                let exported = Folder::new();
                let path = exported.join(name);
                cluster.rbd(["export", name, path.to_str().unwrap()]);
                std::fs::read(path).unwrap()
            }
        }
    }
}
